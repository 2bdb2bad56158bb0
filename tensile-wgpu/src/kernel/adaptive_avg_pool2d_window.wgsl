// First position of window `index` of `windows` over an axis, and the one behind its last.
fn window(index: u32, size: u32, windows: u32) -> vec2<u32> {
    return vec2(index * size / windows, ((index + 1u) * size + windows - 1u) / windows);
}
