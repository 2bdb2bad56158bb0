// dx = y·(dy − Σ dy·y) of rows.
fn run(group: u32, lane: u32) {
    let row = (p.first + group) * (WG / p.lanes) + lane / p.lanes;
    let place = lane % p.lanes;
    let valid = p.first + group < p.end && row < p.rows;
    let begin = row * p.width;
    let stop = select(0u, p.width, valid);
    var sum = Sum(E(), E());
    for (var j = place; j < stop; j += p.lanes) {
        sum = add(sum, $dy[begin + j] * $y[begin + j]);
    }
    let dot = row_sum(vec2(total(sum), 0.0), lane).x;
    for (var j = place; j < stop; j += p.lanes) {
        $dx[begin + j] = $y[begin + j] * ($dy[begin + j] - dot);
    }
}
