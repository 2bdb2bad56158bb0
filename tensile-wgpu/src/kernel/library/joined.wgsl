fn joined1(high: f32, low: f32) -> f32 {
    return select(high + low, high, (bitcast<u32>(high) & 0x7f800000u) == 0x7f800000u);
}

fn joined4(high: vec4<f32>, low: vec4<f32>) -> vec4<f32> {
    return select(high + low, high, (bitcast<vec4<u32>>(high) & vec4(0x7f800000u)) == vec4(0x7f800000u));
}
