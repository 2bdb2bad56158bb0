// The normal distribution function erfc(-x / sqrt 2) / 2 by formula 7.1.26 of Abramowitz and Stegun, within 3e-7. Needs exp.wgsl.
fn normal_cdf(x: vec4<f32>) -> vec4<f32> {
    let z = abs(x) * 0.70710678;
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let polynomial = ((((1.0614054 * t - 1.453152) * t + 1.4214137) * t - 0.28449674) * t + 0.2548296) * t;
    let tail = 0.5 * polynomial * accurate_exp(-z * z);
    return select(1.0 - tail, tail, x < vec4(0.0));
}
