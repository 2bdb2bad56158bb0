// One sum of vectors' components.
alias One = f32;
alias E = vec4<f32>;
alias S = f32;
alias V = vec4<f32>;
alias W = f32;

fn across(sum: Sum) -> Total {
    let a = add_total(Total(sum.high.x, sum.low.x), Total(sum.high.y, sum.low.y));
    let b = add_total(Total(sum.high.z, sum.low.z), Total(sum.high.w, sum.low.w));
    return add_total(a, b);
}

fn joined(total: Total) -> W {
    return joined1(total.high, total.low);
}
