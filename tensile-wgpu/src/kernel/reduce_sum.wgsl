// Sums of x, times a factor. Also channel_sum.
$partials

fn center(o: u32) -> S {
    return S();
}

fn term(i: u32, s: u32, center: S) -> V {
    return $x[i];
}

fn finish(o: u32, total: W) {
    $y[o] = p.factor * total;
}

fn run(group: u32, lane: u32) {
    reduce(group, lane);
}
