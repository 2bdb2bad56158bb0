// The first sorted place whose key is not below `row`.
fn run(group: u32, lane: u32) {
    let row = group * WG + lane;
    if row > p.rows {
        return;
    }
    var low = 0u;
    var high = p.n;
    while low < high {
        let middle = low + (high - low) / 2u;
        if $keys[middle] < row {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    $starts[row] = low;
}
