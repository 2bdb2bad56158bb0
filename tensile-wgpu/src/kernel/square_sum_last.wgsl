// Adds the last m sums to the sum so far, and gives the number's nearest f32 and the rest.
fn run(group: u32, lane: u32) {
    if group > 0u || lane > 0u {
        return;
    }
    var total = $before;
    for (var k = 0u; k < p.m; k++) {
        total = add_sums(total, $sums[p.start + k]);
    }
    let high = opaque1(joined1(total.x, total.y));
    $sum[0] = high;
    $sum[1] = select(total.y - (high - total.x), 0.0, (bitcast<u32>(high) & 0x7f800000u) == 0x7f800000u);
}
