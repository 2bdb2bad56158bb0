// The sum of whole numbers.
$partials

fn center(o: u32) -> S {
    return S();
}

fn term(i: u32, s: u32, center: S) -> V {
    return $right[i];
}

fn finish(o: u32, total: W) {
    $y[o] = total;
}

fn run(group: u32, lane: u32) {
    reduce(group, lane);
}
