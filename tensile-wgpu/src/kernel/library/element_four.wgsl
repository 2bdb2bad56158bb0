// Elements are vectors.
alias E = vec4<f32>;
alias Mask = vec4<bool>;
const WIDTH: u32 = 4u;

// What an invocation has added up, in two parts: the plain sum, and what its roundings lost.
struct Sum {
    high: E,
    low: E,
}

fn across_largest(x: E) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

// Whether the components of element `j` of a row are among its first `n` numbers.
fn within(j: u32, n: u32) -> Mask {
    return vec4(4u * j) + vec4(0u, 1u, 2u, 3u) < vec4(n);
}

fn e_to(x: E) -> E {
    return accurate_exp(x);
}

// 1 where a component of element `j` of a row is its number `index`, else 0.
fn hot(j: u32, index: u32) -> E {
    return select(vec4(0.0), vec4(1.0), vec4(4u * j) + vec4(0u, 1u, 2u, 3u) == vec4(index));
}

// Number `index` of those that element `x` is a part of.
fn number(x: E, index: u32) -> f32 {
    return x[index % 4u];
}

fn total(sum: Sum) -> f32 {
    let all = joined4(sum.high, sum.low);
    return (all.x + all.y) + (all.z + all.w);
}
