// Adds the parts of each window.
$window
$finite

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= p.n {
        return;
    }
    var sum = 0.0;
    var rest = 0.0;
    for (var part = 0u; part < p.parts; part++) {
        let x = $sums[i * p.parts + part] + rest;
        let next = sum + x;
        rest = finite(x - (next - sum));
        sum = next;
    }
    let row = i / p.out_w;
    let rows = window(row % p.out_h, p.h, p.out_h);
    let columns = window(i - row * p.out_w, p.w, p.out_w);
    $y[i] = sum / f32((rows.y - rows.x) * (columns.y - columns.x));
}
