// Each element of the input adds its shares of the windows that it lies in, row by row. An invocation takes four elements.
$store
$window

fn sum(plane: u32, row: u32, column: u32) -> f32 {
    // The windows over a position are the positions under a window, with sizes swapped.
    let rows = window(row, p.out_h, p.h);
    let columns = window(column, p.out_w, p.w);
    var sum = 0.0;
    for (var out_h = rows.x; out_h < rows.y; out_h++) {
        let h = window(out_h, p.h, p.out_h);
        let start = (plane * p.out_h + out_h) * p.out_w;
        for (var out_w = columns.x; out_w < columns.y; out_w++) {
            let w = window(out_w, p.w, p.out_w);
            sum += $dy[start + out_w] / f32((h.y - h.x) * (w.y - w.x));
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
