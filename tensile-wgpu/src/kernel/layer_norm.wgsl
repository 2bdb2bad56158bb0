// Mean and 1/√(variance + ε) of rows, and y = (x − mean)/√(variance + ε)·weight + bias. p.b holds ε.
fn run(group: u32, lane: u32) {
    let row = (p.first + group) * (WG / p.lanes) + lane / p.lanes;
    let place = lane % p.lanes;
    let valid = p.first + group < p.end && row < p.rows;
    let begin = row * p.width;
    let stop = select(0u, p.width, valid);
    let n = f32(p.width * WIDTH);
    var sum = Sum(E(), E());
    for (var j = place; j < stop; j += p.lanes) {
        sum = add(sum, $x[begin + j]);
    }
    let mean = row_sum(vec2(total(sum), 0.0), lane).x / n;
    var squares = Sum(E(), E());
    for (var j = place; j < stop; j += p.lanes) {
        let d = $x[begin + j] - mean;
        squares = add(squares, d * d);
    }
    let rstd = 1.0 / sqrt(row_sum(vec2(total(squares), 0.0), lane).x / n + bitcast<f32>(p.b));
    if valid && place == 0u {
        $mean[row] = mean;
        $rstd[row] = rstd;
    }
    for (var j = place; j < stop; j += p.lanes) {
        $y[begin + j] = ($x[begin + j] - mean) * rstd * $weight[j] + $bias[j];
    }
}
