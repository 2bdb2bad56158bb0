// Adds up the parts of sums in their order, and the bias.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= p.n {
        return;
    }
    var sum = $parts[i];
    for (var part = 1u; part < p.parts; part++) {
        sum += $parts[part * p.n + i];
    }
    if p.biases > 0u {
        sum += $bias[i % p.biases];
    }
    $c[i] = sum;
}
