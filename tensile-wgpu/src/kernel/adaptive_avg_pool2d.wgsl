// Sum of every `parts`-th element of a window, or with one part its mean. Invocation i computes part i % parts of output i / parts.
$window
$finite

fn run(group: u32, lane: u32) {
    let i = p.first + group * WG + lane;
    if i >= p.n * p.parts {
        return;
    }
    let output = i / p.parts;
    let part = i - output * p.parts;
    let row = output / p.out_w;
    let plane = row / p.out_h;
    let rows = window(row - plane * p.out_h, p.h, p.out_h);
    let columns = window(output - row * p.out_w, p.w, p.out_w);
    let width = columns.y - columns.x;
    var h = rows.x + part / width;
    var w = columns.x + part % width;
    // Compensated: `rest` is what the sum lacks.
    var sum = 0.0;
    var rest = 0.0;
    while h < rows.y {
        let x = $x[(plane * p.h + h) * p.w + w] + rest;
        let next = sum + x;
        rest = finite(x - (next - sum));
        sum = next;
        h += p.parts / width;
        w += p.parts % width;
        if w >= columns.y {
            w -= width;
            h += 1u;
        }
    }
    if p.parts == 1u {
        sum = sum / f32((rows.y - rows.x) * width);
    }
    $y[i] = sum;
}
