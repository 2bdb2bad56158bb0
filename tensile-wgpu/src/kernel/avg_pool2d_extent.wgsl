// What window `index` along an axis contributes to the divisor; what lies past the padding never counts.
fn extent(index: u32, kernel: u32, stride: u32, pad: u32, size: u32) -> f32 {
    let start = index * stride;
    let end = start + kernel;
    if p.count_pad != 0u {
        return f32(min(end, size + 2u * pad) - start);
    }
    return f32(min(max(end, pad) - pad, size) - (max(start, pad) - pad));
}

// Number of elements of window (row, column).
fn area(row: u32, column: u32) -> f32 {
    let height = extent(row, p.kernel_h, p.stride_h, p.pad_h, p.h);
    return height * extent(column, p.kernel_w, p.stride_w, p.pad_w, p.w);
}
