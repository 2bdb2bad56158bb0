// The argument of the hyperbolic tangent in GELU's approximation.
fn gelu_inner(x: vec4<f32>) -> vec4<f32> {
    return 0.7978846 * (x + 0.044715 * x * x * x);
}

// Derivatives of both forms.
fn gelu_slope(x: vec4<f32>) -> vec4<f32> {
    return normal_cdf(x) + x * 0.3989423 * accurate_exp(-0.5 * x * x);
}

fn gelu_tanh_slope(x: vec4<f32>) -> vec4<f32> {
    let t = accurate_tanh(gelu_inner(x));
    let slope = 0.7978846 * (1.0 + 0.134145 * x * x);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope;
}
