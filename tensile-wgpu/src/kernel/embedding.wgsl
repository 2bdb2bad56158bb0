// Rows of a table by index, NaN for an index outside it.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= p.n {
        return;
    }
    let position = i / p.width;
    let row = $indices[position];
    var y = $nan;
    if row < p.rows {
        y = $table[row * p.width + i - position * p.width];
    }
    $y[i] = y;
}
