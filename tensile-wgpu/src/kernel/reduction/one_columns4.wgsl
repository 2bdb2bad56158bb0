// One sum for each component of vectors.
alias One = f32;
alias E = vec4<f32>;
alias S = vec4<f32>;
alias V = vec4<f32>;
alias W = vec4<f32>;

fn across(sum: Sum) -> Total {
    return Total(sum.high, sum.low);
}

fn joined(total: Total) -> W {
    return joined4(total.high, total.low);
}
