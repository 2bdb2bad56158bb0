// y = f of operands that repeat along some of the output's dimensions, of which number 0 is the innermost.
//
// The n elements that this dispatch makes begin `skip` elements behind the start of the output's window. An element's number among them gives its place in each
// operand, dimension by dimension; the outermost needs no size, because the elements end within it.
fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let first = i32(4u * i) - i32(p.skip);
    let n = i32(p.n);
    if first >= n || first + 4 <= 0 {
        return;
    }
    var rest = $number;
    var at_a = rest * 0u + p.a_first;
    var at_b = rest * 0u + p.b_first;
    if p.rank > 1u { $step0 }
    if p.rank > 2u { $step1 }
    if p.rank > 3u { $step2 }
    if p.rank > 4u { $step3 }
    if p.rank > 5u { $step4 }
    if p.rank > 6u { $step5 }
    if p.rank > 7u { $step6 }
    at_a += rest * p.a_outer;
    at_b += rest * p.b_outer;
    $load
    let y = $f;
    if first >= 0 && first + 4 <= n {
        $y[i] = y;
        return;
    }
    for (var c = 0; c < 4; c++) {
        if first + c >= 0 && first + c < n {
            $y[i][c] = y[c];
        }
    }
}
