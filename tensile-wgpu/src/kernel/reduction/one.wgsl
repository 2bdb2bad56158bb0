// One sum of single elements.
alias One = f32;
alias E = f32;
alias S = f32;
alias V = f32;
alias W = f32;

fn across(sum: Sum) -> Total {
    return Total(sum.high, sum.low);
}

fn joined(total: Total) -> W {
    return joined1(total.high, total.low);
}
