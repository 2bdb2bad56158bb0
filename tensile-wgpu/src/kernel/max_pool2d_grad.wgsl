// Each element of the input adds the gradients of the windows that chose it, row by row. An invocation takes four elements.
$store

// First and last window along an axis that position `at` lies in; none if the first is behind the last.
fn windows(at: u32, kernel: u32, stride: u32, size: u32) -> vec2<u32> {
    return vec2(select(0u, (at - kernel) / stride + 1u, at >= kernel), min(at / stride, size - 1u));
}

fn sum(plane: u32, row: u32, column: u32) -> f32 {
    let h = row + p.pad_h;
    let w = column + p.pad_w;
    let rows = windows(h, p.kernel_h, p.stride_h, p.out_h);
    let columns = windows(w, p.kernel_w, p.stride_w, p.out_w);
    var sum = 0.0;
    for (var out_h = rows.x; out_h <= rows.y; out_h++) {
        let tap_h = h - out_h * p.stride_h;
        let start = (plane * p.out_h + out_h) * p.out_w;
        for (var out_w = columns.x; out_w <= columns.y; out_w++) {
            let tap = tap_h * p.kernel_w + w - out_w * p.stride_w;
            let at = start + out_w;
            if extractBits($indices[at / 4u], 8u * (at % 4u), 8u) == tap {
                sum += $dy[at];
            }
        }
    }
    return sum;
}

fn run(group: u32, lane: u32) {
    let i = p.first + group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 {
        return;
    }
    var row = 4u * i / p.w;
    var column = 4u * i - row * p.w;
    var plane = row / p.h;
    row -= plane * p.h;
    var y = vec4(0.0);
    for (var k = 0; k < min(left, 4); k++) {
        let sum = sum(plane, row, column);
        y = select(y, vec4(sum), vec4(0, 1, 2, 3) == vec4(k));
        column += 1u;
        if column == p.w {
            column = 0u;
            row += 1u;
        }
        if row == p.h {
            row = 0u;
            plane += 1u;
        }
    }
    store(i, left, y);
}
