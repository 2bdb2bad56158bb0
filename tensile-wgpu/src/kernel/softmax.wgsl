// Softmax of rows: y = exp(x − max)/Σ exp(x − max). If p.a > 0, row r sees numbers up to p.width·WIDTH − p.a + r % p.a only, and the others become 0.
fn run(group: u32, lane: u32) {
    let row = (p.first + group) * (WG / p.lanes) + lane / p.lanes;
    let place = lane % p.lanes;
    let valid = p.first + group < p.end && row < p.rows;
    let begin = row * p.width;
    var n = p.width * WIDTH;
    if p.a > 0u {
        n = n - p.a + row % p.a + 1u;
    }
    // Elements that hold numbers it sees.
    let stop = select(0u, (n + WIDTH - 1u) / WIDTH, valid);
    let low = E(minus_infinity());
    var best = low;
    for (var j = place; j < stop; j += p.lanes) {
        best = max(best, select(low, $x[begin + j], within(j, n)));
    }
    let largest = row_largest(across_largest(best), lane);
    var sum = Sum(E(), E());
    for (var j = place; j < stop; j += p.lanes) {
        sum = add(sum, select(E(), e_to($x[begin + j] - largest), within(j, n)));
    }
    let scale = 1.0 / row_sum(vec2(total(sum), 0.0), lane).x;
    if !valid {
        return;
    }
    for (var j = place; j < p.width; j += p.lanes) {
        var y = E();
        if j < stop {
            y = select(E(), e_to($x[begin + j] - largest) * scale, within(j, n));
        }
        $y[begin + j] = y;
    }
}
