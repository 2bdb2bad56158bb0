// Products of matrices through workgroup memory: a workgroup computes 64 × 64 elements of C, an invocation 8 × 4 of them. Parameters are those of the blocks without workgroup memory.
// Terms of the sum that are in workgroup memory at a time.
const DEPTH: u32 = 16u;
// Vectors from one term to the next: one more than needed, so that neighbours lie in different banks.
const PITCH: u32 = 17u;
// Tiles of terms that are added up before they go to a second accumulator, which keeps roundings few.
const CHAIN: u32 = 4u;

var<workgroup> tile_a: array<vec4<f32>, 272>;
var<workgroup> tile_b: array<vec4<f32>, 272>;

// Four rows of A in a term of the sum.
fn rows_of_a(start: u32, row: u32, term: u32) -> vec4<f32> {
    let s = term / p.k;
    let at = start + s * p.a_sum + (term - s * p.k) * p.a_k;
    let rows = vec4(at) + min(vec4(row) + vec4(0u, 1u, 2u, 3u), vec4(p.m - 1u)) * p.a_row;
    return vec4($a[rows.x], $a[rows.y], $a[rows.z], $a[rows.w]);
}

// Four columns of B in a term of the sum.
fn columns_of_b(start: u32, column: u32, term: u32) -> vec4<f32> {
    let s = term / p.k;
    let at = start + s * p.b_sum + (term - s * p.k) * p.b_k;
    let columns = vec4(at) + min(vec4(column) + vec4(0u, 1u, 2u, 3u), vec4(p.n - 1u)) * p.b_column;
    return vec4($b[columns.x], $b[columns.y], $b[columns.z], $b[columns.w]);
}

// Which four rows and which term an invocation fetches: neighbours take neighbouring terms where those are neighbours in memory, and rows otherwise.
fn place(index: u32, step: u32) -> vec2<u32> {
    if step == 1u {
        return vec2(index / DEPTH, index % DEPTH);
    }
    return vec2(index % 16u, index / 16u);
}

fn run(group: u32, lane: u32) {
    if group >= p.blocks {
        return;
    }
    var rest = p.first + group;
    let column_blocks = (p.n + 63u) / 64u;
    let column = rest % column_blocks * 64u;
    rest /= column_blocks;
    let row_blocks = (p.m + 63u) / 64u;
    let row = rest % row_blocks * 64u;
    rest /= row_blocks;
    let part = rest % p.parts;
    let batch = rest / p.parts;

    let a_start = batch * p.a_batch;
    let b_start = batch * p.b_batch;
    let x = lane % 16u;
    let y = lane / 16u;
    var total: array<vec4<f32>, 8>;
    var chain: array<vec4<f32>, 8>;
    var tiles = 0u;
    let start = part * p.part;
    let end = min(start + p.part, p.sums * p.k);
    for (var t = start; t < end; t += DEPTH) {
        for (var i = 0u; i < 2u; i++) {
            let a = place(i * WG + lane, p.a_k);
            let b = place(i * WG + lane, p.b_k);
            var rows = vec4(0.0);
            if t + a.y < end {
                rows = rows_of_a(a_start, row + 4u * a.x, t + a.y);
            }
            var columns = vec4(0.0);
            if t + b.y < end {
                columns = columns_of_b(b_start, column + 4u * b.x, t + b.y);
            }
            tile_a[a.y * PITCH + a.x] = rows;
            tile_b[b.y * PITCH + b.x] = columns;
        }
        workgroupBarrier();
        for (var i = 0u; i < DEPTH; i++) {
            let low = tile_a[i * PITCH + 2u * y];
            let high = tile_a[i * PITCH + 2u * y + 1u];
            let columns = tile_b[i * PITCH + x];
            chain[0] += low.x * columns;
            chain[1] += low.y * columns;
            chain[2] += low.z * columns;
            chain[3] += low.w * columns;
            chain[4] += high.x * columns;
            chain[5] += high.y * columns;
            chain[6] += high.z * columns;
            chain[7] += high.w * columns;
        }
        tiles += 1u;
        if tiles % CHAIN == 0u || t + DEPTH >= end {
            for (var r = 0u; r < 8u; r++) {
                total[r] += chain[r];
                chain[r] = vec4(0.0);
            }
        }
        workgroupBarrier();
    }

    let first_row = row + 8u * y;
    let first_column = column + 4u * x;
    if first_column >= p.n {
        return;
    }
    for (var r = 0u; r < 8u; r++) {
        if first_row + r < p.m {
            let at = (part * p.batches + batch) * p.m * p.n + (first_row + r) * p.c_row;
            for (var i = 0u; i < min(4u, p.n - first_column); i++) {
                var c = total[r][i];
                if p.has_bias == 1u {
                    c += $bias[(first_row + r) * p.bias_row + (first_column + i) * p.bias_column];
                }
                $c[at + (first_column + i) * p.c_column] = c;
            }
        }
    }
}
