// With g = dy·weight and x̂ the normalised row: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)).
fn run(group: u32, lane: u32) {
    let row = (p.first + group) * (WG / p.lanes) + lane / p.lanes;
    let place = lane % p.lanes;
    let valid = p.first + group < p.end && row < p.rows;
    let begin = row * p.width;
    let stop = select(0u, p.width, valid);
    var mean = 0.0;
    var rstd = 0.0;
    if valid {
        mean = number($mean[row / WIDTH], row);
        rstd = number($rstd[row / WIDTH], row);
    }
    var g_sum = Sum(E(), E());
    var dot_sum = Sum(E(), E());
    for (var j = place; j < stop; j += p.lanes) {
        let g = $dy[begin + j] * $weight[j];
        g_sum = add(g_sum, g);
        dot_sum = add(dot_sum, g * (($x[begin + j] - mean) * rstd));
    }
    let means = row_sum(vec2(total(g_sum), total(dot_sum)), lane) / f32(p.width * WIDTH);
    for (var j = place; j < stop; j += p.lanes) {
        let g = $dy[begin + j] * $weight[j];
        $dx[begin + j] = rstd * (g - means.x - ($x[begin + j] - mean) * rstd * means.y);
    }
}
