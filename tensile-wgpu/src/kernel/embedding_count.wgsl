// How often each digit stands in a chunk of keys; all chunks' counts of a digit stand together.
fn run(group: u32, lane: u32) {
    let chunk = group * WG + lane;
    if chunk >= p.chunks {
        return;
    }
    for (var digit = 0u; digit < 16u; digit++) {
        $counts[digit * p.chunks + chunk] = 0u;
    }
    let first = chunk * p.chunk;
    let end = min(first + p.chunk, p.n);
    for (var i = first; i < end; i++) {
        let digit = ($keys[i] >> p.shift) & 15u;
        $counts[digit * p.chunks + chunk] += 1u;
    }
}
