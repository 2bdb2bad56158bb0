// Two sums for each component of vectors.
alias One = f32;
alias E = vec4<f32>;
alias S = vec4<f32>;
alias V = mat2x4<f32>;
alias W = mat2x4<f32>;

fn across(sum: Sum) -> Total {
    return Total(sum.high, sum.low);
}

fn joined(total: Total) -> W {
    return W(joined4(total.high[0], total.low[0]), joined4(total.high[1], total.low[1]));
}
