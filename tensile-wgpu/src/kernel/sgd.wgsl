// Gradient descent without momentum.
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
    let w = old_w - scalar(p.group) * g;
    $store_w
}
