// The row of each position, or the number of rows where it counts nowhere. Negative indices are large ones here.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= p.n {
        return;
    }
    let index = $indices[i];
    $keys[i] = select(min(index, p.rows), p.rows, index == p.padding);
    $positions[i] = i;
}
