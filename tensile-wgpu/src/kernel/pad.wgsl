// y[i] is an element of x where there is one, else zero. Positions before the first wrap around and so are past the last.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    if i >= p.n {
        return;
    }
    var rest = i;
    var x = 0u;
    var stride = 1u;
    var inside = true;
    if p.rank > 0u {
        let next = rest / p.n0;
        let at = rest - next * p.n0 - p.start0;
        inside = inside && at < p.size0;
        x += at * stride;
        stride *= p.size0;
        rest = next;
    }
    if p.rank > 1u {
        let next = rest / p.n1;
        let at = rest - next * p.n1 - p.start1;
        inside = inside && at < p.size1;
        x += at * stride;
        stride *= p.size1;
        rest = next;
    }
    if p.rank > 2u {
        let next = rest / p.n2;
        let at = rest - next * p.n2 - p.start2;
        inside = inside && at < p.size2;
        x += at * stride;
        stride *= p.size2;
        rest = next;
    }
    if p.rank > 3u {
        let next = rest / p.n3;
        let at = rest - next * p.n3 - p.start3;
        inside = inside && at < p.size3;
        x += at * stride;
        stride *= p.size3;
        rest = next;
    }
    if p.rank > 4u {
        let next = rest / p.n4;
        let at = rest - next * p.n4 - p.start4;
        inside = inside && at < p.size4;
        x += at * stride;
        stride *= p.size4;
        rest = next;
    }
    if p.rank > 5u {
        let next = rest / p.n5;
        let at = rest - next * p.n5 - p.start5;
        inside = inside && at < p.size5;
        x += at * stride;
        stride *= p.size5;
        rest = next;
    }
    if p.rank > 6u {
        let next = rest / p.n6;
        let at = rest - next * p.n6 - p.start6;
        inside = inside && at < p.size6;
        x += at * stride;
        stride *= p.size6;
        rest = next;
    }
    let at = rest - p.start;
    inside = inside && at < p.size;
    x += at * stride;
    var y = $zero;
    if inside {
        y = $x[x];
    }
    $y[i] = y;
}
