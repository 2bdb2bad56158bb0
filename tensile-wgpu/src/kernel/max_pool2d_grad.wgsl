// Each element of the input adds the gradients of the windows that chose it, from the last to the first.
fn sum(plane: u32, h: Place, w: Place) -> f32 {
    var sum = 0.0;
    var row = h.window;
    for (var tap_h = h.tap; tap_h < p.kernel_h; tap_h += p.stride_h) {
        var column = w.window;
        // Before the first window the number wraps around, and so is past the last.
        if row < p.out_h {
            let start = (plane * p.out_h + row) * p.out_w;
            for (var tap_w = w.tap; tap_w < p.kernel_w; tap_w += p.stride_w) {
                if column < p.out_w {
                    let at = start + column;
                    if extractBits($indices[at / 4u], 8u * (at % 4u), 8u) == tap_h * p.kernel_w + tap_w {
                        sum += $dy[at];
                    }
                }
                column -= 1u;
            }
        }
        row -= 1u;
    }
    return sum;
}

$run
