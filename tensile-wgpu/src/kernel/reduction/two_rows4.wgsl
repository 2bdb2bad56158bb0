// Two sums of vectors' components.
alias One = f32;
alias E = vec4<f32>;
alias S = f32;
alias V = mat2x4<f32>;
alias W = vec2<f32>;

fn component(sum: Sum, index: u32) -> Total {
    return Total(W(sum.high[0][index], sum.high[1][index]), W(sum.low[0][index], sum.low[1][index]));
}

fn across(sum: Sum) -> Total {
    return add_total(add_total(component(sum, 0u), component(sum, 1u)), add_total(component(sum, 2u), component(sum, 3u)));
}

fn joined(total: Total) -> W {
    return W(joined1(total.high.x, total.low.x), joined1(total.high.y, total.low.y));
}
