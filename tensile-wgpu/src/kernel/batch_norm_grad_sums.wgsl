// Sums of dy and of dy·(x − mean) of each channel; from them dbias and dweight.
$partials

fn center(o: u32) -> S {
    return $mean[o];
}

fn term(i: u32, s: u32, center: S) -> V {
    let dy = $dy[i];
    return V(dy, dy * ($x[i] - center));
}

fn finish(o: u32, total: W) {
    $dbias[o] = total[0];
    $dweight[o] = total[1] / sqrt($var[o] + p.eps);
}

fn run(group: u32, lane: u32) {
    reduce(group, lane);
}
