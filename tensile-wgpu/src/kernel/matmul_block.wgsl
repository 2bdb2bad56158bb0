// Products of matrices without workgroup memory: each invocation computes a block of ROWS × 4 elements of C. Steps say how far apart neighbours lie in memory, so that
// transposed operands and outputs are only other steps. The sum runs over `sums` pairs of matrices of `k` terms each; part i of it takes `part` terms from i·part on, and has an
// output of its own.
const ROWS: u32 = $rows;
// Terms that are added up before they go to a second accumulator, which keeps roundings few.
const CHAIN: u32 = 64u;

// Where a row begins in A. Beyond the border the last one is computed again, and not stored.
fn row_at(start: u32, row: u32) -> u32 {
    return start + min(row, p.m - 1u) * p.a_row;
}

struct Block {
    start: u32,
    column: u32,
}

fn store(block: Block, row: u32, total: vec4<f32>) {
    let column = block.column;
    if row >= p.m {
        return;
    }
    var c = total;
    let left = p.n - column;
    if p.has_bias == 1u {
        let columns = min(vec4(column) + vec4(0u, 1u, 2u, 3u), vec4(p.n - 1u));
        let bias = vec4(row * p.bias_row) + columns * p.bias_column;
        c += vec4($bias[bias.x], $bias[bias.y], $bias[bias.z], $bias[bias.w]);
    }
    let first = block.start + row * p.c_row + column * p.c_column;
    $c[first] = c.x;
    if left > 1u {
        $c[first + p.c_column] = c.y;
    }
    if left > 2u {
        $c[first + 2u * p.c_column] = c.z;
    }
    if left > 3u {
        $c[first + 3u * p.c_column] = c.w;
    }
}

fn run(group: u32, lane: u32) {
    let here = group * WG + lane;
    if here >= p.blocks {
        return;
    }
    var rest = p.first + here;
    let column_blocks = (p.n + 3u) / 4u;
    let column = rest % column_blocks * 4u;
    rest /= column_blocks;
    let row_blocks = (p.m + ROWS - 1u) / ROWS;
    let row = rest % row_blocks * ROWS;
    rest /= row_blocks;
    let part = rest % p.parts;
    let batch = rest / p.parts;

    let columns = min(vec4(column) + vec4(0u, 1u, 2u, 3u), vec4(p.n - 1u));
    let column_at = vec4(batch * p.b_batch) + columns * p.b_column;
    let start = batch * p.a_batch;
    $begin
    $chain
    var t = part * p.part;
    let end = min(t + p.part, p.sums * p.k);
    while t < end {
        let s = t / p.k;
        let k = t - s * p.k;
        let n = min(min(CHAIN, p.k - k), end - t);
        var a = s * p.a_sum + k * p.a_k;
        var b = column_at + vec4(s * p.b_sum + k * p.b_k);
        for (var i = 0u; i < n; i++) {
            $fetch
            $multiply
            a += p.a_k;
        }
        $flush
        t += n;
    }
    let block = Block((part * p.batches + batch) * p.m * p.n, column);
    $store
}
