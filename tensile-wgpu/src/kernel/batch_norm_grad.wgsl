// dx = scale·dy + slope·(x − mean) + offset with scale = weight/√(var + ε). In training mean and variance depend on x: p.n is the number of values of a channel; otherwise it is 0.
fn run(group: u32, lane: u32) {
    let unit = (p.first + group) * WG + lane;
    if p.first + group >= p.end || unit >= p.units {
        return;
    }
    let row = unit / p.per_row;
    let channel = row % p.channels;
    let begin = row * p.width;
    let mean = $mean[channel];
    let rstd = 1.0 / sqrt($var[channel] + p.eps);
    let scale = $weight[channel] * rstd;
    var slope = S();
    var offset = S();
    if p.n > 0.0 {
        slope = -scale * rstd * $dweight[channel] / p.n;
        offset = -scale * $dbias[channel] / p.n;
    }
    for (var j = unit % p.per_row; j < p.width; j += p.per_row) {
        $dx[begin + j] = scale * $dy[begin + j] + (slope * ($x[begin + j] - mean) + offset);
    }
}
