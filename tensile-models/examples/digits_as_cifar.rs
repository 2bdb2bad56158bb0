//! Writes the digits that come with the program in the binary format of CIFAR-10: `cargo run -p tensile-models --example digits_as_cifar -- DIR`.
//!
//! With them, anything that is made for CIFAR-10 can be tried without a download: 32×32 pixels, three colours, ten classes, five files for training and one for testing.
#![expect(clippy::print_stderr, reason = "a program's own output")]

use std::path::Path;

use tensile_models::data::{Batch, CsvImages, DataError, Dataset, Draw};
use tensile_models::zoo::Task;

/// Height and width of the images there and here.
const SIZES: [usize; 2] = [8, 32];

/// A record of CIFAR-10: the label, then the red, the green and the blue pixels.
fn record(data: &dyn Dataset, index: usize) -> Result<Vec<u8>, DataError> {
    let mut batch = Batch::new(&Task::Images { shape: [1, SIZES[0], SIZES[0]] }, 1);
    data.sample(index, Draw::evaluation(index), batch.sample(0))?;
    let mut sample = batch.sample(0);
    let digit = sample.f32(0).to_vec();
    let mut record = vec![sample.labels[0] as u8];
    for colour in 0..3 {
        for pixel in 0..SIZES[1] * SIZES[1] {
            let [y, x] = [pixel / SIZES[1], pixel % SIZES[1]].map(|at| at * SIZES[0] / SIZES[1]);
            // White on a background that is a little blue.
            let background = if colour == 2 { 64.0 } else { 16.0 };
            let ink = digit[y * SIZES[0] + x];
            record.push((background + (255.0 - background) * ink) as u8);
        }
    }
    Ok(record)
}

/// Writes the six files.
pub(crate) fn write(folder: &Path) -> std::io::Result<()> {
    let fault = |error: DataError| std::io::Error::other(error.to_string());
    let digits = CsvImages::digits();
    std::fs::create_dir_all(folder)?;
    let file = |data: &dyn Dataset, range: std::ops::Range<usize>, name: String| {
        let records: Result<Vec<Vec<u8>>, DataError> = range.map(|index| record(data, index)).collect();
        std::fs::write(folder.join(name), records.map_err(fault)?.concat())
    };
    let n = digits.train.len();
    for part in 0..5 {
        file(&*digits.train, n * part / 5..n * (part + 1) / 5, format!("data_batch_{}.bin", part + 1))?;
    }
    file(&*digits.test, 0..digits.test.len(), "test_batch.bin".to_owned())
}

fn main() -> std::process::ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("error: give the folder to write to");
        return 2.into();
    };
    match write(Path::new(&folder)) {
        Ok(()) => 0.into(),
        Err(error) => {
            eprintln!("error: cannot write to '{}': {error}", Path::new(&folder).display());
            1.into()
        }
    }
}
