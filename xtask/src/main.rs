//! Development tasks: `cargo xtask ci`, `cargo xtask bench`.

fn main() {}
