// Powers of two for whole n from -126 to 127.
fn two_to(n: vec4<i32>) -> vec4<f32> {
    return bitcast<vec4<f32>>((n + 127) << vec4(23u));
}

// The nearest whole number n to x / ln 2, for |x| below 200.
fn exp_whole(x: vec4<f32>) -> vec4<f32> {
    return round(x * 1.442695);
}

// r = x - n ln 2 for that n. ln 2 stands in two parts; products of the first with small whole numbers are exact.
fn exp_rest(x: vec4<f32>, n: vec4<f32>) -> vec4<f32> {
    return (x - n * 0.6933594) + n * 2.1219444e-4;
}

// (e^r - 1 - r) / r^2 by Taylor's series up to r^5.
fn exp_tail(r: vec4<f32>) -> vec4<f32> {
    return ((((r * 1.9841270e-4 + 1.3888889e-3) * r + 8.3333333e-3) * r + 4.1666667e-2) * r + 0.16666667) * r + 0.5;
}

// e^x within some units in the last place; 0 below -104, infinite above 89, NaN for NaN. Unlike the built-in function it is as accurate far from 0.
fn accurate_exp(x: vec4<f32>) -> vec4<f32> {
    let low = select(x, vec4(89.0), x > vec4(89.0));
    let t = select(low, vec4(-104.0), low < vec4(-104.0));
    let n = exp_whole(t);
    let r = exp_rest(t, n);
    // 2^n in two factors, so that neither leaves the range of normal numbers.
    let whole = vec4<i32>(n);
    let half = whole >> vec4(1u);
    return ((exp_tail(r) * r + 1.0) * r + 1.0) * two_to(half) * two_to(whole - half);
}
