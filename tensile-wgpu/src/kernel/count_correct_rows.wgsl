// Whether the first largest number of a row stands at its label: 1 or 0. The first counts as largest if it is NaN; others are passed over.
struct Best {
    value: f32,
    index: u32,
}

var<workgroup> shared_best: array<Best, WG>;

// The larger of two, the first of equals.
fn better(a: Best, b: Best) -> Best {
    if b.value > a.value || (b.value == a.value && b.index < a.index) {
        return b;
    }
    return a;
}

fn run(group: u32, lane: u32) {
    let row = (p.first + group) * (WG / p.lanes) + lane / p.lanes;
    let place = lane % p.lanes;
    let valid = p.first + group < p.end && row < p.rows;
    let begin = row * p.width;
    let stop = select(0u, p.width, valid);
    var first = 0.0;
    if valid {
        first = $x[begin];
    }
    var best = Best(first, 0u);
    for (var j = place; j < stop; j += p.lanes) {
        best = better(best, Best($x[begin + j], j));
    }
    for (var step = p.lanes / 2u; step > 0u; step /= 2u) {
        shared_best[lane] = best;
        workgroupBarrier();
        best = better(best, shared_best[lane ^ step]);
        workgroupBarrier();
    }
    if valid && place == 0u {
        let label = $labels[row];
        let is_nan = (bitcast<u32>(first) & 0x7fffffffu) > 0x7f800000u;
        $right[row] = select(0, 1, label == i32(select(best.index, 0u, is_nan)));
    }
}
