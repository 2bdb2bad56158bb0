// Four channels for each invocation; the first one counts.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 || $shut {
        return;
    }
    let mean = p.keep * $running_mean[i] + p.momentum * $mean[i];
    let variance = p.keep * $running_var[i] + p.momentum * ($var[i] * p.unbias);
    for (var c = 0u; c < u32(min(left, 4)); c++) {
        $running_mean[i][c] = mean[c];
        $running_var[i][c] = variance[c];
    }
    if i == 0u {
        $count[0] += 1;
    }
}
