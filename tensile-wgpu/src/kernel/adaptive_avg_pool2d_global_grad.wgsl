// With one window in each plane: the plane's gradient by its number of elements. An invocation takes four elements.
$store

fn run(group: u32, lane: u32) {
    let i = p.first + group * WG + lane;
    let left = i32(p.n) - i32(4u * i);
    if left <= 0 {
        return;
    }
    let area = p.h * p.w;
    var plane = 4u * i / area;
    var place = 4u * i - plane * area;
    var y = vec4(0.0);
    for (var k = 0; k < min(left, 4); k++) {
        y = select(y, vec4($dy[plane] / f32(area)), vec4(0, 1, 2, 3) == vec4(k));
        place += 1u;
        if place == area {
            place = 0u;
            plane += 1u;
        }
    }
    store(i, left, y);
}
