// Sums of squares with what rounding takes from them: a sum is a pair of numbers, the second of which holds the rest of the first.
//
// x * x is exact as p and its error, by parts of x of 12 digits; a sum's error is that of Knuth's two-sum.
fn run(group: u32, lane: u32) {
    let vectors = (p.n + 3u) / 4u;
    var high = vec4(0.0);
    var low = vec4(0.0);
    let first = group * WG * p.steps + lane;
    for (var step = 0u; step < p.steps; step++) {
        let i = first + step * WG;
        if i < vectors {
            let inside = vec4(4u * i) + vec4(0u, 1u, 2u, 3u) < vec4(p.n);
            let x = select(vec4(0.0), $x[i], inside);
            let upper = bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) & vec4(0xfffff000u));
            let lower = x - upper;
            let square = x * x;
            let sum = opaque4(high + square);
            let added = opaque4(sum - high);
            let error = (high - (sum - added)) + (square - added);
            low += error + (((upper * upper - square) + 2.0 * upper * lower) + lower * lower);
            high = sum;
        }
    }
    if group < p.groups {
        let total = add_sums(add_sums(vec2(high.x, low.x), vec2(high.y, low.y)), add_sums(vec2(high.z, low.z), vec2(high.w, low.w)));
        $sums[p.to + group * WG + lane] = total;
    }
}
