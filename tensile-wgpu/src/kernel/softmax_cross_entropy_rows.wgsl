// Log-sum-exp of rows.
fn run(group: u32, lane: u32) {
    let row = (p.first + group) * (WG / p.lanes) + lane / p.lanes;
    let place = lane % p.lanes;
    let valid = p.first + group < p.end && row < p.rows;
    let begin = row * p.width;
    let stop = select(0u, p.width, valid);
    var best = E(minus_infinity());
    for (var j = place; j < stop; j += p.lanes) {
        best = max(best, $x[begin + j]);
    }
    let largest = row_largest(across_largest(best), lane);
    var sum = Sum(E(), E());
    for (var j = place; j < stop; j += p.lanes) {
        sum = add(sum, e_to($x[begin + j] - largest));
    }
    let all = row_sum(vec2(total(sum), 0.0), lane).x;
    if valid && place == 0u {
        // NaN and infinity stay; log need not keep them.
        let special = (bitcast<u32>(all) & 0x7f800000u) == 0x7f800000u;
        $lse[row] = largest + select(log(all), all, special);
    }
}
