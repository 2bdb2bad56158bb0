// Sum of each window by its size. An invocation takes four outputs in a row.
$store
$extent

fn mean(plane: u32, row: u32, column: u32) -> f32 {
    let top = i32(row * p.stride_h) - i32(p.pad_h);
    let left = i32(column * p.stride_w) - i32(p.pad_w);
    let end_h = min(top + i32(p.kernel_h), i32(p.h));
    let end_w = min(left + i32(p.kernel_w), i32(p.w));
    var sum = 0.0;
    for (var h = max(top, 0); h < end_h; h++) {
        let start = (plane * p.h + u32(h)) * p.w;
        for (var w = max(left, 0); w < end_w; w++) {
            sum += $x[start + u32(w)];
        }
    }
    return sum / area(row, column);
}

fn run(group: u32, lane: u32) {
    let i = p.first + group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 {
        return;
    }
    var row = 4u * i / p.out_w;
    var column = 4u * i - row * p.out_w;
    var plane = row / p.out_h;
    row -= plane * p.out_h;
    var y = vec4(0.0);
    for (var k = 0; k < min(left, 4); k++) {
        let mean = mean(plane, row, column);
        y = select(y, vec4(mean), vec4(0, 1, 2, 3) == vec4(k));
        column += 1u;
        if column == p.out_w {
            column = 0u;
            row += 1u;
        }
        if row == p.out_h {
            row = 0u;
            plane += 1u;
        }
    }
    store(i, left, y);
}
