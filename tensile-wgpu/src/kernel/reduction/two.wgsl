// Two sums of single elements.
alias One = f32;
alias E = f32;
alias S = f32;
alias V = vec2<f32>;
alias W = vec2<f32>;

fn across(sum: Sum) -> Total {
    return Total(sum.high, sum.low);
}

fn joined(total: Total) -> W {
    return W(joined1(total.high.x, total.low.x), joined1(total.high.y, total.low.y));
}
