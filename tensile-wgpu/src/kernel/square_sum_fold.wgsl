// Of m sums from `start` on, each of n invocations adds every n-th.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= p.n {
        return;
    }
    var total = vec2(0.0);
    for (var k = i; k < p.m; k += p.n) {
        total = add_sums(total, $sums[p.start + k]);
    }
    $sums[p.to + i] = total;
}
