// For p.mode 0 the mean of each channel, for p.mode 1 the mean square of what differs from it.
$partials

fn center(o: u32) -> S {
    var mean = S();
    if p.mode > 0u {
        mean = $mean[o];
    }
    return mean;
}

fn term(i: u32, s: u32, center: S) -> V {
    let d = $x[i] - center;
    return select(d, d * d, p.mode > 0u);
}

fn finish(o: u32, total: W) {
    if p.mode > 0u {
        $var[o] = total / p.factor;
    } else {
        $mean[o] = total / p.factor;
    }
}

fn run(group: u32, lane: u32) {
    reduce(group, lane);
}
