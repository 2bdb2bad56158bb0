// Mean of log-sum-exp − logit of the label over the rows that count: sums of it and of their number. If p.mode > 0, rows with label p.word do not count.
$partials

fn center(o: u32) -> S {
    return S();
}

fn term(i: u32, s: u32, center: S) -> V {
    let label = $labels[i];
    if p.mode > 0u && label == p.word {
        return V();
    }
    if label < 0 || label >= i32(p.columns) {
        return V(nan(), 1.0);
    }
    return V($lse[i] - $x[i * p.columns + u32(label)], 1.0);
}

fn nan() -> f32 {
    var bits = 0x7fc00000u;
    return bitcast<f32>(bits);
}

fn finish(o: u32, total: W) {
    var loss = nan();
    if total.y > 0.0 {
        loss = total.x / total.y;
    }
    $loss[o] = loss;
}

fn run(group: u32, lane: u32) {
    reduce(group, lane);
}
