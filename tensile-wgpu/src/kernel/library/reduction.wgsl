// Sums of terms in a fixed order, compensated, so that they are as good as sums in twice the precision that are rounded at the end. See kernel/reduction.rs.

// A sum in two parts. The first is the plain sum, so it is infinite or NaN where that is; the second holds what its roundings lost.
struct Sum {
    high: V,
    low: V,
}

// The same of what is left of an element's components.
struct Total {
    high: W,
    low: W,
}

var<workgroup> shared_high: array<W, WG>;
var<workgroup> shared_low: array<W, WG>;

// 1, which compilers cannot know: a factor that keeps them from simplifying (a + b) - a to b, and changes nothing.
fn one() -> One {
    return One((p.chunks >> 31u) + 1u);
}

fn add_term(sum: Sum, x: V) -> Sum {
    let high = (sum.high + x) * one();
    let part = (high - sum.high) * one();
    return Sum(high, sum.low + ((sum.high - (high - part)) + (x - part)));
}

fn add_total(a: Total, b: Total) -> Total {
    let high = (a.high + b.high) * one();
    let part = (high - a.high) * one();
    return Total(high, (a.low + b.low) + ((a.high - (high - part)) + (b.high - part)));
}

// Position of the first term of output `o`.
fn kept_offset(o: u32) -> u32 {
    if p.kept_rank <= 1u {
        return o * p.kept_stride0;
    }
    var rest = o / p.kept_size0;
    var at = o % p.kept_size0 * p.kept_stride0;
    if p.kept_rank == 2u {
        return at + rest * p.kept_stride1;
    }
    at += rest % p.kept_size1 * p.kept_stride1;
    rest /= p.kept_size1;
    return at + rest % p.kept_size2 * p.kept_stride2 + rest / p.kept_size2 * p.kept_stride3;
}

// What run `s` of reduced elements adds to it.
fn reduced_offset(s: u32) -> u32 {
    if p.reduced_rank <= 1u {
        return s * p.reduced_stride0;
    }
    var rest = s / p.reduced_size0;
    var at = s % p.reduced_size0 * p.reduced_stride0;
    if p.reduced_rank == 2u {
        return at + rest * p.reduced_stride1;
    }
    at += rest % p.reduced_size1 * p.reduced_stride1;
    rest /= p.reduced_size1;
    return at + rest % p.reduced_size2 * p.reduced_stride2 + rest / p.reduced_size2 * p.reduced_stride3;
}

// What one invocation sums in the first stage: of each segment of its chunk the terms from `place` on, `p.lanes` apart.
fn first_stage(o: u32, chunk: u32, place: u32) -> Total {
    let center = center(o);
    let base = kept_offset(o);
    var sum = Sum(V(), V());
    var block = V();
    var n = 0u;
    let pieces = (p.run + p.piece - 1u) / p.piece;
    let end = min((chunk + 1u) * p.per_chunk, p.segments);
    if p.run == 1u {
        for (var s = chunk * p.per_chunk; s < end; s++) {
            block += term(base + reduced_offset(s), s, center);
            n++;
            // Short sums lose little.
            if n == 16u {
                sum = add_term(sum, block);
                block = V();
                n = 0u;
            }
        }
        return across(add_term(sum, block));
    }
    for (var segment = chunk * p.per_chunk; segment < end; segment++) {
        var s = segment;
        var start = 0u;
        if pieces > 1u {
            s = segment / pieces;
            start = segment % pieces * p.piece;
        }
        let stop = min(start + p.piece, p.run);
        let run = base + reduced_offset(s);
        for (var j = start + place; j < stop; j += p.lanes) {
            block += term(run + j, s, center);
            n++;
            if n == 16u {
                sum = add_term(sum, block);
                block = V();
                n = 0u;
            }
        }
    }
    return across(add_term(sum, block));
}

// What one invocation sums in the second stage: partial sums of output `o`.
fn second_stage(o: u32, place: u32) -> Total {
    var total = Total(W(), W());
    for (var chunk = place; chunk < p.chunks; chunk += p.lanes) {
        total = add_total(total, partial(o * p.chunks + chunk));
    }
    return total;
}

// Sums by `p.lanes` invocations each, then pairwise. Partial sums go to scratch if there are several chunks.
fn reduce(group: u32, lane: u32) {
    let unit = (p.first + group) * (WG / p.lanes) + lane / p.lanes;
    let place = lane % p.lanes;
    let valid = p.first + group < p.end && unit < p.units;
    let o = unit % p.outputs;
    let chunk = unit / p.outputs;
    var total = Total(W(), W());
    if valid {
        if p.stage == 0u {
            total = first_stage(o, chunk, place);
        } else {
            total = second_stage(o, place);
        }
    }
    for (var step = p.lanes / 2u; step > 0u; step /= 2u) {
        shared_high[lane] = total.high;
        shared_low[lane] = total.low;
        workgroupBarrier();
        if place < step {
            total = add_total(total, Total(shared_high[lane + step], shared_low[lane + step]));
        }
        workgroupBarrier();
    }
    if valid && place == 0u {
        if p.stage == 0u && p.chunks > 1u {
            put_partial(o * p.chunks + chunk, total);
        } else {
            finish(o, joined(total));
        }
    }
}
