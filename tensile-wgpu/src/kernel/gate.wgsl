// Scale of gradients, whether updates are made, and the gradients' norm.
fn finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn run(group: u32, lane: u32) {
    if group > 0u || lane > 0u {
        return;
    }
    let norm = sqrt(joined1($sum[0], $sum[1]));
    let loss = $of_loss;
    let factor = select(1.0, p.max_norm / (norm + 1e-6), p.clips != 0u);
    let shut = p.skips != 0u && !(finite(norm) && finite(loss));
    // A comparison rather than a minimum, which would take 1 for NaN.
    $gates[0] = select(factor, 1.0, factor > 1.0);
    $gates[1] = select(1.0, 0.0, shut);
    $norm[0] = norm;
}
