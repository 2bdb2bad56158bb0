// Some vectors of four elements for each invocation, a workgroup's side by side: y = f.
fn run(group: u32, lane: u32) {
    for (var step = 0u; step < p.steps; step++) {
        let i = (group * p.steps + step) * WG + lane;
        let left = i32(p.n) - i32(4u * i);
        if left <= 0 {
            return;
        }
        $load
        let y = $f;
        if left >= 4 {
            $y[i] = y;
            continue;
        }
        // The last vector is not full: what is behind the tensor stays as it is.
        for (var c = 0u; c < u32(left); c++) {
            $y[i][c] = y[c];
        }
    }
}
