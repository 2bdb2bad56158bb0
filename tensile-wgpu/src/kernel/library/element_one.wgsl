// Elements are numbers.
alias E = f32;
alias Mask = bool;
const WIDTH: u32 = 1u;

// What an invocation has added up, in two parts: the plain sum, and what its roundings lost.
struct Sum {
    high: E,
    low: E,
}

fn across_largest(x: E) -> f32 {
    return x;
}

// Whether the components of element `j` of a row are among its first `n` numbers.
fn within(j: u32, n: u32) -> Mask {
    return j < n;
}

fn e_to(x: E) -> E {
    return accurate_exp(vec4(x)).x;
}

// 1 where a component of element `j` of a row is its number `index`, else 0.
fn hot(j: u32, index: u32) -> E {
    return select(0.0, 1.0, j == index);
}

// Number `index` of those that element `x` is a part of.
fn number(x: E, index: u32) -> f32 {
    return x;
}

fn total(sum: Sum) -> f32 {
    return joined1(sum.high, sum.low);
}
