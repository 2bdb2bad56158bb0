// Stores vector i of the tensor, of which `left` elements and those before it are there: what is behind the tensor stays as it is.
fn store(i: u32, left: i32, y: $vector) {
    if left >= 4 {
        $y[i] = y;
        return;
    }
    $y[i].x = y.x;
    if left > 1 {
        $y[i].y = y.y;
    }
    if left > 2 {
        $y[i].z = y.z;
    }
}
