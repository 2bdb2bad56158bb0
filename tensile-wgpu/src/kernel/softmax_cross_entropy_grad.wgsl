// dx = (softmax(x) − 1 at the label)·scale. If p.a > 0, rows with label p.b have the gradient 0; if the label is none of the columns, NaN.
fn run(group: u32, lane: u32) {
    let unit = (p.first + group) * WG + lane;
    if p.first + group >= p.end || unit >= p.rows * p.lanes {
        return;
    }
    let row = unit / p.lanes;
    let begin = row * p.width;
    let label = $labels[row];
    let lse = $lse[row];
    let ignored = p.a > 0u && label == bitcast<i32>(p.b);
    let wrong = label < 0 || label >= i32(p.width * WIDTH);
    var bits = 0x7fc00000u;
    let scale = select($scale[0], bitcast<f32>(bits), wrong);
    for (var j = unit % p.lanes; j < p.width; j += p.lanes) {
        let dx = (e_to($x[begin + j] - lse) - hot(j, u32(label))) * scale;
        $dx[begin + j] = select(dx, E(), ignored);
    }
}
