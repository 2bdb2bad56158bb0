// tanh x within some units in the last place; NaN for NaN. Needs exp.wgsl.
//
// tanh t = e / (e + 2) with e = e^2t - 1 for t >= 0, and e^2t - 1 = 2^n (e^r - 1) + (2^n - 1), so that nothing is lost near 0.
fn accurate_tanh(x: vec4<f32>) -> vec4<f32> {
    // Beyond 10 the result rounds to 1.
    let t = 2.0 * select(abs(x), vec4(10.0), abs(x) > vec4(10.0));
    let n = exp_whole(t);
    let r = exp_rest(t, n);
    let power = two_to(vec4<i32>(n));
    let e = power * (r + r * r * exp_tail(r)) + (power - 1.0);
    let y = e / (e + 2.0);
    return select(y, -y, x < vec4(0.0));
}
