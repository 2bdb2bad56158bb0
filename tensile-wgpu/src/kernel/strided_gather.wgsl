// Gathers elements that stand one after another in y, four an invocation.
$store

struct Place {
    x: u32,
    // Elements from here to the end of the innermost dimension.
    left: u32,
}

fn place(i: u32) -> Place {
    var rest = i;
    var x = p.x_at;
    var left = p.n - i;
    if p.rank > 0u {
        let next = rest / p.n0;
        let at = rest - next * p.n0;
        x += at * p.x0;
        left = p.n0 - at;
        rest = next;
    }
    if p.rank > 1u {
        let next = rest / p.n1;
        let at = rest - next * p.n1;
        x += at * p.x1;
        rest = next;
    }
    if p.rank > 2u {
        let next = rest / p.n2;
        let at = rest - next * p.n2;
        x += at * p.x2;
        rest = next;
    }
    if p.rank > 3u {
        let next = rest / p.n3;
        let at = rest - next * p.n3;
        x += at * p.x3;
        rest = next;
    }
    if p.rank > 4u {
        let next = rest / p.n4;
        let at = rest - next * p.n4;
        x += at * p.x4;
        rest = next;
    }
    if p.rank > 5u {
        let next = rest / p.n5;
        let at = rest - next * p.n5;
        x += at * p.x5;
        rest = next;
    }
    if p.rank > 6u {
        let next = rest / p.n6;
        let at = rest - next * p.n6;
        x += at * p.x6;
        rest = next;
    }
    return Place(x + rest * p.x_outer, left);
}

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 {
        return;
    }
    let step = select(p.x_outer, p.x0, p.rank > 0u);
    var at = place(4u * i);
    var y = vec4<u32>();
    for (var k = 0; k < min(left, 4); k++) {
        if at.left == 0u {
            at = place(4u * i + u32(k));
        }
        y = select(y, vec4($x[at.x]), vec4(0, 1, 2, 3) == vec4(k));
        at.x += step;
        at.left -= 1u;
    }
    store(i, left, y);
}
