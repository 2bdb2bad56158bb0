// Moves keys and positions to their places by one digit. Those of a chunk stay in order, and so do chunks.
fn run(group: u32, lane: u32) {
    let chunk = group * WG + lane;
    if chunk >= p.chunks {
        return;
    }
    let first = chunk * p.chunk;
    let end = min(first + p.chunk, p.n);
    for (var i = first; i < end; i++) {
        let key = $keys[i];
        let count = ((key >> p.shift) & 15u) * p.chunks + chunk;
        let place = $counts[count];
        $counts[count] = place + 1u;
        $next_keys[place] = key;
        $next_positions[place] = $positions[i];
    }
}
