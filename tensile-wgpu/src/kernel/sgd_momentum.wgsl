// Gradient descent with momentum, in Nesterov's form or the plain one.
fn scalar(k: u32) -> f32 {
    return $scalar;
}

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    let gate = $gate;
    if left <= 0 || gate.y == 0.0 {
        return;
    }
    let at = 4u * i + p.skip;
    let old_w = $old_w;
    let g = gate.x * $old_g + p.decay * old_w;
    let m = p.momentum * $old_m + g;
    let w = old_w - scalar(p.group) * select(m, g + p.momentum * m, p.nesterov != 0u);
    $store_w
    $store_m
}
