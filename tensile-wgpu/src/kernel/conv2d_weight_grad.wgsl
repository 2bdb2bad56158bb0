// The gradient of a convolution by its weight: an invocation computes ROWS output channels of four weights, which are input channels and taps, for one part of the sum over the lines
// of all output images. Part i takes `part` lines from i·part on, and has an output of its own.
const ROWS: u32 = $rows;
// Terms, about, that are added up before they go to a second accumulator, which keeps roundings few.
const CHAIN: u32 = 64u;
const FOUR: vec4<u32> = vec4(0u, 1u, 2u, 3u);

// Where a channel begins in an image. Beyond the border the last one is computed again, and not stored.
fn row_at(start: u32, row: u32) -> u32 {
    return start + min(row, p.to_c - 1u) * p.to_h * p.to_w;
}

struct Block {
    at: u32,
    columns: u32,
    weight: u32,
}

fn store(block: Block, row: u32, total: vec4<f32>) {
    if row >= p.to_c {
        return;
    }
    let left = block.columns - block.weight;
    let first = block.at + row * block.columns + block.weight;
    $dw[first] = total.x;
    if left > 1u {
        $dw[first + 1u] = total.y;
    }
    if left > 2u {
        $dw[first + 2u] = total.z;
    }
    if left > 3u {
        $dw[first + 3u] = total.w;
    }
}

fn run(group: u32, lane: u32) {
    let here = group * WG + lane;
    if here >= p.blocks {
        return;
    }
    let taps = p.taps_h * p.taps_w;
    let columns = p.from_c * taps;
    var rest = p.first + here;
    let column_blocks = (columns + 3u) / 4u;
    let weight = rest % column_blocks * 4u;
    rest /= column_blocks;
    let row_blocks = (p.to_c + ROWS - 1u) / ROWS;
    let row = rest % row_blocks * ROWS;
    rest /= row_blocks;
    let part_of_channels = rest % p.groups;
    let part = rest / p.groups;

    let place = min(vec4(weight) + FOUR, vec4(columns - 1u));
    let tap = place % vec4(taps);
    let from_plane = p.from_h * p.from_w;
    let channel_at = (vec4(part_of_channels * p.from_c) + place / vec4(taps)) * from_plane;
    let tap_i = vec4<i32>(tap / vec4(p.taps_w)) * p.tap_step_h + vec4(p.origin_h);
    let tap_j = vec4<i32>(tap % vec4(p.taps_w)) * p.tap_step_w + vec4(p.origin_w);
    let channel = part_of_channels * p.to_c;

    let start = channel * p.to_h * p.to_w;
    $begin
    $chain
    var n_terms = 0u;
    let end = min((part + 1u) * p.part, p.images * p.to_h);
    for (var line = part * p.part; line < end; line++) {
        let image = line / p.to_h;
        let i = line % p.to_h;
        let from_i = vec4(i32(i) * p.pixel_step_h) + tap_i;
        let valid_i = (from_i >= vec4(0)) & (from_i < vec4(i32(p.from_h)));
        let from_line = vec4(image * p.groups * p.from_c * from_plane) + channel_at
            + select(vec4(0u), vec4<u32>(from_i), valid_i) * p.from_w;
        var from_j = tap_j;
        var a = image * p.groups * p.to_c * p.to_h * p.to_w + i * p.to_w;
        for (var first = 0u; first < p.to_w; first += CHAIN) {
            let stop = min(first + CHAIN, p.to_w);
            for (var j = first; j < stop; j++) {
                let inside = valid_i & (from_j >= vec4(0)) & (from_j < vec4(i32(p.from_w)));
                let b = select(vec4(0u), from_line + vec4<u32>(from_j), inside);
                let x = select(vec4(0.0), vec4($x[b.x], $x[b.y], $x[b.z], $x[b.w]), inside);
                $multiply
                a += 1u;
                from_j += vec4(p.pixel_step_w);
            }
            n_terms += stop - first;
            if n_terms >= CHAIN {
                n_terms = 0u;
                $flush
            }
        }
    }
    $flush
    let at = (part * p.groups * p.to_c + channel) * columns;
    let block = Block(at, columns, weight);
    $store
}
