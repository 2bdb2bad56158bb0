// Largest value of each window and where in it that stands. An invocation takes four outputs in a row: one word of indices.
$store

struct Position {
    plane: u32,
    row: u32,
    column: u32,
}

fn next(at: Position) -> Position {
    if at.column + 1u < p.out_w {
        return Position(at.plane, at.row, at.column + 1u);
    }
    if at.row + 1u < p.out_h {
        return Position(at.plane, at.row + 1u, 0u);
    }
    return Position(at.plane + 1u, 0u, 0u);
}

struct Best {
    value: f32,
    tap: u32,
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// The first of equal values, and the last NaN.
fn largest(at: Position) -> Best {
    let top = i32(at.row * p.stride_h) - i32(p.pad_h);
    let left = i32(at.column * p.stride_w) - i32(p.pad_w);
    let end_h = min(i32(p.kernel_h), i32(p.h) - top);
    let end_w = min(i32(p.kernel_w), i32(p.w) - left);
    let first_w = max(-left, 0);
    var best = Best(p.low, 0xffu);
    var found = false;
    for (var tap_h = max(-top, 0); tap_h < end_h; tap_h++) {
        let row = (at.plane * p.h + u32(top + tap_h)) * p.w;
        let tap = u32(tap_h) * p.kernel_w;
        for (var tap_w = first_w; tap_w < end_w; tap_w++) {
            let x = $x[row + u32(left + tap_w)];
            if !found || is_nan(x) || (x > best.value && !is_nan(best.value)) {
                best = Best(x, tap + u32(tap_w));
                found = true;
            }
        }
    }
    return best;
}

fn run(group: u32, lane: u32) {
    let i = p.first + group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 {
        return;
    }
    let row = 4u * i / p.out_w;
    var at = Position(row / p.out_h, row % p.out_h, 4u * i - row * p.out_w);
    var best = largest(at);
    var y = vec4(best.value);
    var word = best.tap;
    var own = 0xffu;
    if left > 1 {
        at = next(at);
        best = largest(at);
        y.y = best.value;
        word |= best.tap << 8u;
        own = 0xffffu;
    }
    if left > 2 {
        at = next(at);
        best = largest(at);
        y.z = best.value;
        word |= best.tap << 16u;
        own = 0xffffffu;
    }
    if left > 3 {
        at = next(at);
        best = largest(at);
        y.w = best.value;
        word |= best.tap << 24u;
        own = 0xffffffffu;
    }
    store(i, left, y);
    if left < 4 {
        word |= $indices[i] & ~own;
    }
    $indices[i] = word;
}
