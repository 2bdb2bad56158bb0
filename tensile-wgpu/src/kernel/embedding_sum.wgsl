// Each row: its positions in the segment where it begins, then the sums of the segments where it goes on.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let row = i / p.width;
    if row >= p.rows {
        return;
    }
    let column = i - row * p.width;
    let first = $starts[row];
    let end = $starts[row + 1u];
    let segment = first / p.segment;
    let here = min(end, (segment + 1u) * p.segment);
    var sum = $zero;
    for (var place = first; place < here; place++) {
        sum += $dy[$positions[place] * p.width + column];
    }
    for (var next = segment; (next + 1u) * p.segment < end; next++) {
        sum += $sums[next * p.width + column];
    }
    $y[i] = sum;
}
