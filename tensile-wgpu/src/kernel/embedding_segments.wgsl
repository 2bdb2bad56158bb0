// For each segment but the first: the sum of its positions whose row began in a segment before it.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let before = i / p.width;
    if before + 1u >= p.segments {
        return;
    }
    let column = i - before * p.width;
    let first = (before + 1u) * p.segment;
    let row = $keys[first];
    if row == p.rows || $keys[first - 1u] != row {
        return;
    }
    let end = min(first + p.segment, p.n);
    var sum = $zero;
    for (var place = first; place < end; place++) {
        if $keys[place] != row {
            break;
        }
        sum += $dy[$positions[place] * p.width + column];
    }
    $sums[i] = sum;
}
