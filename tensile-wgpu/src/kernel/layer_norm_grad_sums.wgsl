// Sums over rows of dy·x̂ and of dy: dweight and dbias.
$partials

fn center(o: u32) -> S {
    return S();
}

fn term(i: u32, s: u32, center: S) -> V {
    let dy = $dy[i];
    return V(dy * (($x[i] - $mean[s]) * $rstd[s]), dy);
}

fn finish(o: u32, total: W) {
    $dweight[o] = total[0];
    $dbias[o] = total[1];
}

fn run(group: u32, lane: u32) {
    reduce(group, lane);
}
