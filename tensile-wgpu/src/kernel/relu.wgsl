// y = max(x, 0), and NaN for NaN.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 {
        return;
    }
    let x = $x[i];
    let y = select(x, vec4(0.0), x < vec4(0.0));
    if left >= 4 {
        $y[i] = y;
        return;
    }
    // The last vector is not full: what is behind the tensor stays as it is.
    $y[i].x = y.x;
    if left > 1 {
        $y[i].y = y.y;
    }
    if left > 2 {
        $y[i].z = y.z;
    }
}
