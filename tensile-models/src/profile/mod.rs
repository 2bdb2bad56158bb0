//! Measuring the latencies of ops on a device, to learn from: what `tensile profile` does.
//!
//! [`cases()`] is the set of ops and shapes, [`measure()`] times as many of them as there is time for; `tensile_core::latency` learns from that.

mod cases;
mod measure;
mod nets;

use std::path::PathBuf;

pub use cases::{Case, cases};
pub use measure::{MeasureError, measure};

/// Where the latencies of a device are kept unless a file is named: in the user's folder for caches. None if the system has no such folder.
pub fn default_file(device: &str) -> Option<PathBuf> {
    let words: Vec<String> = device
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    Some(dirs::cache_dir()?.join("tensile").join(format!("latencies-{}.safetensors", words.join("-"))))
}
