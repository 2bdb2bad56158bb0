//! The `tensile` command line.

fn main() {}
