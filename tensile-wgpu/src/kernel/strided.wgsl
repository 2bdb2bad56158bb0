// Copies element i of a box, `rank` + 1 dimensions innermost first, from its place in x to that in y.
fn run(group: u32, lane: u32) {
    var rest = group * WG + lane;
    if rest >= p.n {
        return;
    }
    var x = p.x_at;
    var y = p.y_at;
    if p.rank > 0u {
        let next = rest / p.n0;
        let at = rest - next * p.n0;
        x += at * p.x0;
        y += at * p.y0;
        rest = next;
    }
    if p.rank > 1u {
        let next = rest / p.n1;
        let at = rest - next * p.n1;
        x += at * p.x1;
        y += at * p.y1;
        rest = next;
    }
    if p.rank > 2u {
        let next = rest / p.n2;
        let at = rest - next * p.n2;
        x += at * p.x2;
        y += at * p.y2;
        rest = next;
    }
    if p.rank > 3u {
        let next = rest / p.n3;
        let at = rest - next * p.n3;
        x += at * p.x3;
        y += at * p.y3;
        rest = next;
    }
    if p.rank > 4u {
        let next = rest / p.n4;
        let at = rest - next * p.n4;
        x += at * p.x4;
        y += at * p.y4;
        rest = next;
    }
    if p.rank > 5u {
        let next = rest / p.n5;
        let at = rest - next * p.n5;
        x += at * p.x5;
        y += at * p.y5;
        rest = next;
    }
    if p.rank > 6u {
        let next = rest / p.n6;
        let at = rest - next * p.n6;
        x += at * p.x6;
        y += at * p.y6;
        rest = next;
    }
    x += rest * p.x_outer;
    y += rest * p.y_outer;
    $copy
}
