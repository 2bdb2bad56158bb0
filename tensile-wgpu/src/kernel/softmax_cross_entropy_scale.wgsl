// The gradient of the loss by its number of rows that count. If p.mode > 0, rows with label p.word do not.
$partials

fn center(o: u32) -> S {
    return S();
}

fn term(i: u32, s: u32, center: S) -> V {
    return select(1.0, 0.0, p.mode > 0u && $labels[i] == p.word);
}

fn finish(o: u32, total: W) {
    $scale[o] = $dloss[o] / total;
}

fn run(group: u32, lane: u32) {
    reduce(group, lane);
}
