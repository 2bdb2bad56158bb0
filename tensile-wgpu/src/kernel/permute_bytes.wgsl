// Where byte i of the output is in the input: `rank` + 1 dimensions, innermost first.
fn place(i: u32) -> u32 {
    var rest = i;
    var at = 0u;
    if p.rank > 0u {
        let next = rest / p.n0;
        at += (rest - next * p.n0) * p.x0;
        rest = next;
    }
    if p.rank > 1u {
        let next = rest / p.n1;
        at += (rest - next * p.n1) * p.x1;
        rest = next;
    }
    if p.rank > 2u {
        let next = rest / p.n2;
        at += (rest - next * p.n2) * p.x2;
        rest = next;
    }
    if p.rank > 3u {
        let next = rest / p.n3;
        at += (rest - next * p.n3) * p.x3;
        rest = next;
    }
    if p.rank > 4u {
        let next = rest / p.n4;
        at += (rest - next * p.n4) * p.x4;
        rest = next;
    }
    if p.rank > 5u {
        let next = rest / p.n5;
        at += (rest - next * p.n5) * p.x5;
        rest = next;
    }
    if p.rank > 6u {
        let next = rest / p.n6;
        at += (rest - next * p.n6) * p.x6;
        rest = next;
    }
    return at + rest * p.outer;
}

// An invocation owns a word; of the last one the bytes behind the tensor stay as they are.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if 4u * i >= p.n {
        return;
    }
    let own = min(p.n - 4u * i, 4u);
    var word = 0u;
    if own < 4u {
        word = $y[i];
    }
    for (var k = 0u; k < own; k++) {
        let at = place(4u * i + k);
        word = insertBits(word, $x[at / 4u] >> (8u * (at % 4u)), 8u * k, 8u);
    }
    $y[i] = word;
}
