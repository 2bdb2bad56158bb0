// One whole number.
alias One = i32;
alias S = i32;
alias V = i32;
alias W = i32;

fn across(sum: Sum) -> Total {
    return Total(sum.high, sum.low);
}

fn joined(total: Total) -> W {
    return total.high + total.low;
}
