let a = $x[x];
    let b = $x[x + p.x_side];
    let c = $x[x + 2u * p.x_side];
    let d = $x[x + 3u * p.x_side];
    $y[y] = vec4(a.x, b.x, c.x, d.x);
    $y[y + p.y_side] = vec4(a.y, b.y, c.y, d.y);
    $y[y + 2u * p.y_side] = vec4(a.z, b.z, c.z, d.z);
    $y[y + 3u * p.y_side] = vec4(a.w, b.w, c.w, d.w);