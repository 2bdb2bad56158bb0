// One vector of four elements for each invocation: y = f.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 {
        return;
    }
    $load
    let y = $f;
    if left >= 4 {
        $y[i] = y;
        return;
    }
    // The last vector is not full: what is behind the tensor stays as it is.
    for (var c = 0u; c < u32(left); c++) {
        $y[i][c] = y[c];
    }
}
