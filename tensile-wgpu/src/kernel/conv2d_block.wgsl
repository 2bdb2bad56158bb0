// A convolution, or its gradient by the input, as a product of weights and pixels: an invocation computes ROWS channels of four pixels. Both take a grid of pixels from `from_c`
// channels of images of from_h × from_w to `to_c` channels of images of to_h × to_w, in groups. Pixels that see the same taps, as those of one remainder by the stride in
// an input gradient, make a phase; in each direction pixel i of a phase sees, at tap r, pixel i·pixel_step + (origin + phase + r·tap_step)/divisor of the source, if
// that divides without a remainder. The sum runs over taps, and within one over channels.
const ROWS: u32 = $rows;
// Terms, about, that are added up before they go to a second accumulator, which keeps roundings few.
const CHAIN: u32 = 64u;
const FOUR: vec4<u32> = vec4(0u, 1u, 2u, 3u);

// Where a row begins in the weights. Beyond the border the last one is computed again, and not stored.
fn row_at(start: u32, row: u32) -> u32 {
    return start + min(row, p.to_c - 1u) * p.row_step;
}

// The quotient of a tap's distance, and whether there is no remainder.
fn distance(origin: i32, tap: u32, step: i32, divisor: i32) -> vec2<i32> {
    let whole = origin + i32(tap) * step;
    if divisor == 1 {
        return vec2(whole, 1);
    }
    // Rounded down, not to zero.
    let quotient = select(whole / divisor, -((divisor - 1 - whole) / divisor), whole < 0);
    return vec2(quotient, select(0, 1, quotient * divisor == whole));
}

struct Block {
    at: vec4<u32>,
    valid: vec4<bool>,
    channel: u32,
}

fn store(block: Block, row: u32, total: vec4<f32>) {
    if row >= p.to_c {
        return;
    }
    var y = total;
    if p.has_bias == 1u {
        y += vec4($bias[block.channel + row]);
    }
    let to = block.at + vec4(row * p.to_h * p.to_w);
    if block.valid.x {
        $y[to.x] = y.x;
    }
    if block.valid.y {
        $y[to.y] = y.y;
    }
    if block.valid.z {
        $y[to.z] = y.z;
    }
    if block.valid.w {
        $y[to.w] = y.w;
    }
}

fn run(group: u32, lane: u32) {
    let here = group * WG + lane;
    if here >= p.blocks {
        return;
    }
    // Pixels of a phase are all images' rows and columns that it may have, one after another.
    let grid_h = (p.to_h + p.phases_h - 1u) / p.phases_h;
    let grid_w = (p.to_w + p.phases_w - 1u) / p.phases_w;
    let pixels = p.images * grid_h * grid_w;
    var rest = p.first + here;
    let pixel_blocks = (pixels + 3u) / 4u;
    let pixel = vec4(rest % pixel_blocks * 4u) + FOUR;
    rest /= pixel_blocks;
    let row_blocks = (p.to_c + ROWS - 1u) / ROWS;
    let row = rest % row_blocks * ROWS;
    rest /= row_blocks;
    let part_of_channels = rest % p.groups;
    let phase = rest / p.groups;
    let phase_h = phase / p.phases_w;
    let phase_w = phase % p.phases_w;

    // Divisions are slow: the first pixel's place is worked out, and the next ones' by counting.
    let line = pixel.x / grid_w;
    var at_j = pixel.x - line * grid_w;
    var at_image = line / grid_h;
    var at_i = line - at_image * grid_h;
    var j = vec4(at_j);
    var i = vec4(at_i);
    var image = vec4(at_image);
    for (var next = 1u; next < 4u; next++) {
        at_j += 1u;
        if at_j == grid_w {
            at_j = 0u;
            at_i += 1u;
        }
        if at_i == grid_h {
            at_i = 0u;
            at_image += 1u;
        }
        let later = FOUR >= vec4(next);
        j = select(j, vec4(at_j), later);
        i = select(i, vec4(at_i), later);
        image = select(image, vec4(at_image), later);
    }
    let to_i = i * p.phases_h + vec4(phase_h);
    let to_j = j * p.phases_w + vec4(phase_w);
    let valid = (pixel < vec4(pixels)) & (to_i < vec4(p.to_h)) & (to_j < vec4(p.to_w));
    let from_plane = p.from_h * p.from_w;
    let from_image = min(image, vec4(p.images - 1u)) * (p.groups * p.from_c * from_plane)
        + vec4(part_of_channels * p.from_c * from_plane);
    let from_i = vec4<i32>(i) * p.pixel_step_h;
    let from_j = vec4<i32>(j) * p.pixel_step_w;
    let start = part_of_channels * p.group_step;

    $begin
    $chain
    var n_terms = 0u;
    for (var r = 0u; r < p.taps_h; r++) {
        let down = distance(p.origin_h + i32(phase_h), r, p.tap_step_h, p.divisor_h);
        if down.y == 0 {
            continue;
        }
        let source_i = from_i + vec4(down.x);
        let valid_i = valid & (source_i >= vec4(0)) & (source_i < vec4(i32(p.from_h)));
        for (var s = 0u; s < p.taps_w; s++) {
            let right = distance(p.origin_w + i32(phase_w), s, p.tap_step_w, p.divisor_w);
            if right.y == 0 {
                continue;
            }
            let source_j = from_j + vec4(right.x);
            let inside = valid_i & (source_j >= vec4(0)) & (source_j < vec4(i32(p.from_w)));
            if !any(inside) {
                continue;
            }
            var b = select(vec4(0u), from_image + vec4<u32>(source_i) * p.from_w + vec4<u32>(source_j), inside);
            var a = r * p.taps_w + s;
            for (var first = 0u; first < p.from_c; first += CHAIN) {
                let end = min(first + CHAIN, p.from_c);
                for (var c = first; c < end; c++) {
                    let x = select(vec4(0.0), vec4($x[b.x], $x[b.y], $x[b.z], $x[b.w]), inside);
                    $multiply
                    a += p.channel_step;
                    b += vec4(from_plane);
                }
                n_terms += end - first;
                if n_terms >= CHAIN {
                    n_terms = 0u;
                    $flush
                }
            }
        }
    }
    $flush
    let channel = part_of_channels * p.to_c;
    let at = (image * p.groups * p.to_c + vec4(channel)) * (p.to_h * p.to_w) + to_i * p.to_w + to_j;
    let block = Block(at, valid, channel);
    $store
}
