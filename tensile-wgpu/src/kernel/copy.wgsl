// One vector of 16 bytes for each invocation.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let left = i32(p.bytes) - i32(16u * i);
    if left <= 0 {
        return;
    }
    let x = $x[i];
    if left >= 16 {
        $y[i] = x;
        return;
    }
    // Behind the tensor's last byte all stays as it is, also in its last word.
    let words = u32(left) / 4u;
    for (var c = 0u; c < words; c++) {
        $y[i][c] = x[c];
    }
    let rest = u32(left) % 4u;
    if rest > 0u {
        let mine = (1u << (8u * rest)) - 1u;
        $y[i][words] = (x[words] & mine) | ($y[i][words] & ~mine);
    }
}
