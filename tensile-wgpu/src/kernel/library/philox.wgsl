// Upper and lower half of the 64-bit product a b.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let low = a0 * b0;
    let middle = a1 * b0 + (low >> 16u);
    let cross = a0 * b1 + (middle & 0xffffu);
    return vec2(a1 * b1 + (middle >> 16u) + (cross >> 16u), a * b);
}

// Four random words for a counter and a key: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3; SC 2011).
fn philox4x32(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var c = counter;
    var k = key;
    for (var round = 0u; round < 10u; round++) {
        let a = wide_product(0xD2511F53u, c.x);
        let b = wide_product(0xCD9E8D57u, c.z);
        c = vec4(b.x ^ c.y ^ k.x, b.y, a.x ^ c.w ^ k.y, a.y);
        k += vec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}
