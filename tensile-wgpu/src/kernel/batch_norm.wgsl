// y = (x − mean)/√(var + ε)·weight + bias. An invocation takes some elements of a row, which is all of one channel.
fn run(group: u32, lane: u32) {
    let unit = (p.first + group) * WG + lane;
    if p.first + group >= p.end || unit >= p.units {
        return;
    }
    let row = unit / p.per_row;
    let channel = row % p.channels;
    let begin = row * p.width;
    let mean = $mean[channel];
    let scale = $weight[channel] / sqrt($var[channel] + p.eps);
    let bias = $bias[channel];
    for (var j = unit % p.per_row; j < p.width; j += p.per_row) {
        $y[begin + j] = ($x[begin + j] - mean) * scale + bias;
    }
}
