// x, or 0 for infinities and NaN: sums of infinities lack nothing.
fn finite(x: f32) -> f32 {
    return select(0.0, x, (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u);
}
