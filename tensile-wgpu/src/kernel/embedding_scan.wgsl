// Replaces each count by the sum of those before it. One group.
var<workgroup> totals: array<u32, WG>;

fn run(group: u32, lane: u32) {
    let share = (p.n + WG - 1u) / WG;
    let first = min(lane * share, p.n);
    let end = min(first + share, p.n);
    var total = 0u;
    for (var i = first; i < end; i++) {
        total += $counts[i];
    }
    totals[lane] = total;
    workgroupBarrier();
    var before = 0u;
    for (var other = 0u; other < lane; other++) {
        before += totals[other];
    }
    for (var i = first; i < end; i++) {
        let count = $counts[i];
        $counts[i] = before;
        before += count;
    }
}
