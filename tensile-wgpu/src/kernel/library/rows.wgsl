// Rows that `p.lanes` invocations share, a power of two: what they have to exchange. All invocations of a group must call these functions together.
var<workgroup> shared_value: array<vec2<f32>, WG>;

// Largest of a row's values.
fn row_largest(value: f32, lane: u32) -> f32 {
    var largest = value;
    for (var step = p.lanes / 2u; step > 0u; step /= 2u) {
        shared_value[lane].x = largest;
        workgroupBarrier();
        largest = max(largest, shared_value[lane ^ step].x);
        workgroupBarrier();
    }
    return largest;
}

// Sum of a row's values; the same bits for each of the invocations, because a + b = b + a.
fn row_sum(value: vec2<f32>, lane: u32) -> vec2<f32> {
    var sum = value;
    for (var step = p.lanes / 2u; step > 0u; step /= 2u) {
        shared_value[lane] = sum;
        workgroupBarrier();
        sum += shared_value[lane ^ step];
        workgroupBarrier();
    }
    return sum;
}

// 1, which compilers cannot know: a factor that keeps them from simplifying (a + b) - a to b, and changes nothing.
fn one() -> f32 {
    return f32((p.lanes >> 31u) + 1u);
}

fn add(sum: Sum, x: E) -> Sum {
    let high = (sum.high + x) * one();
    let part = (high - sum.high) * one();
    return Sum(high, sum.low + ((sum.high - (high - part)) + (x - part)));
}

// −∞, which WGSL has no constant for.
fn minus_infinity() -> f32 {
    var bits = 0xff800000u;
    return bitcast<f32>(bits);
}
