// A step of Adam or AdamW. The group's scalars are the step size, what the square root of the second moment is divided by, and the share of the parameter that
// AdamW keeps.
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
    let keep = select(1.0, scalar(3u * p.group + 2u), p.decoupled != 0u);
    let old_w = $old_w;
    let old_m = $old_m;
    let g = gate.x * $old_g + p.decay * old_w;
    let m = old_m + p.new1 * (g - old_m);
    let v = p.beta2 * $old_v + p.new2 * (g * g);
    let w = old_w * keep - scalar(3u * p.group) * (m / (sqrt(v) / scalar(3u * p.group + 1u) + p.eps));
    $store_w
    $store_m
    $store_v
}
