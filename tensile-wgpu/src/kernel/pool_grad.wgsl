// Runs over a gradient: each element of the input adds what `sum` gathers from the windows that it lies in. An invocation takes four elements.
$store

// The last window along an axis that a position lies in, if there is one there, and where in it the position stands. The windows before it hold the position
// at places one stride on each, up to the kernel's size.
struct Place {
    window: u32,
    tap: u32,
}

fn place(at: u32, stride: u32) -> Place {
    return Place(at / stride, at % stride);
}

fn next(at: Place, stride: u32) -> Place {
    if at.tap + 1u < stride {
        return Place(at.window, at.tap + 1u);
    }
    return Place(at.window + 1u, 0u);
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
    // Outside of the loop, because some drivers divide whether or not they are asked to.
    let first_h = place(p.pad_h, p.stride_h);
    let first_w = place(p.pad_w, p.stride_w);
    var h = place(row + p.pad_h, p.stride_h);
    var w = place(column + p.pad_w, p.stride_w);
    var y = vec4(0.0);
    for (var k = 0; k < min(left, 4); k++) {
        let sum = sum(plane, h, w);
        y = select(y, vec4(sum), vec4(0, 1, 2, 3) == vec4(k));
        column += 1u;
        w = next(w, p.stride_w);
        if column == p.w {
            column = 0u;
            w = first_w;
            row += 1u;
            h = next(h, p.stride_h);
        }
        if row == p.h {
            row = 0u;
            h = first_h;
            plane += 1u;
        }
    }
    store(i, left, y);
}
