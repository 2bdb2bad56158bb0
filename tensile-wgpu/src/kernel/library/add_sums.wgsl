// x, without the compiler knowing so: (a + b) - a must not become b. Needs a parameter `zero` that is 0.
fn opaque4(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) ^ vec4(p.zero));
}

fn opaque1(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ p.zero);
}

// The sum of two sums, each a number and the rest that it lacks, with Knuth's two-sum.
fn add_sums(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let sum = opaque1(a.x + b.x);
    let added = opaque1(sum - a.x);
    let error = (a.x - (sum - added)) + (b.x - added);
    return vec2(sum, a.y + b.y + error);
}
