//! The binary files of CIFAR-10 (Krizhevsky: *Learning Multiple Layers of Features from Tiny Images*, 2009;
//! <https://www.cs.toronto.edu/~kriz/cifar.html>, section "Binary version").
//!
//! A record is the label, one byte from 0 to 9, then 1,024 red, 1,024 green and 1,024 blue pixels, row by row. Files for training are `data_batch_1.bin`,
//! `data_batch_2.bin` and so on, five in the original; that for testing is `test_batch.bin`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{self, fault};
use super::stored::{Normalize, Stored};
use super::{DataError, Splits};

/// Mean and standard deviation of the training pixels: red, green, blue.
const CIFAR: [[f32; 2]; 3] = [[0.4914, 0.2470], [0.4822, 0.2435], [0.4465, 0.2616]];

const SHAPE: [usize; 3] = [3, 32, 32];
const CLASSES: usize = 10;
const RECORD: usize = 1 + SHAPE[0] * SHAPE[1] * SHAPE[2];

/// Most files for training.
const MOST_BATCHES: usize = 5;

/// The folder in which the archive has its files.
pub(super) const INNER: &str = "cifar-10-batches-bin";

pub(super) const FIRST: &str = "data_batch_1.bin";
pub(super) const TEST: &str = "test_batch.bin";

/// The folder with the files: this or the one in it, if it has any of them.
pub(super) fn find(folder: &Path) -> Option<PathBuf> {
    [folder.to_owned(), folder.join(INNER)]
        .into_iter()
        .find(|folder| [FIRST, TEST].iter().any(|name| folder.join(name).is_file()))
}

/// Images and labels from the files of a folder. Also gives what black is.
pub(super) fn read(folder: &Path) -> Result<(Splits, Vec<f32>), DataError> {
    let path = |batch: usize| folder.join(format!("data_batch_{batch}.bin"));
    let last = (1..=MOST_BATCHES).rev().find(|&batch| path(batch).is_file()).unwrap_or(1);
    let train: Vec<PathBuf> = (1..=last).map(path).collect();
    let test = folder.join(TEST);
    if let Some(missing) = train.iter().chain([&test]).find(|path| !path.is_file()) {
        let reason = format!("it is missing; CIFAR-10 has {FIRST} to data_batch_{MOST_BATCHES}.bin, and {TEST}");
        return Err(fault(missing, reason));
    }
    let normalize = Arc::new(Normalize::new(&CIFAR));
    let stored = |paths: &[PathBuf]| {
        let mut bytes = Vec::new();
        for path in paths {
            let records = file::read(path)?;
            check(path, &records)?;
            if bytes.is_empty() {
                bytes = records;
            } else {
                bytes.reserve_exact(records.len());
                bytes.extend_from_slice(&records);
            }
        }
        Ok(Arc::new(Stored {
            shape: SHAPE,
            classes: CLASSES,
            labels: bytes.iter().step_by(RECORD).copied().collect(),
            bytes,
            first: 1,
            stride: RECORD,
            normalize: Arc::clone(&normalize),
        }))
    };
    Ok((Splits { train: stored(&train)?, test: stored(&[test])? }, normalize.black()))
}

fn check(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let (records, rest) = (bytes.len() / RECORD, bytes.len() % RECORD);
    if rest != 0 || records == 0 {
        let found = bytes.len();
        let reason = format!(
            "{found} bytes, but records of CIFAR-10 have {RECORD} (a label and 3x32x32 pixels): {records} records and {rest} bytes"
        );
        return Err(fault(path, reason));
    }
    match bytes.iter().step_by(RECORD).enumerate().find(|(_, label)| usize::from(**label) >= CLASSES) {
        Some((index, label)) => {
            Err(fault(path, format!("label {label} of record {index} (from 0), but CIFAR-10 has labels from 0 to 9")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_cut_anywhere_but_between_records_are_errors() {
        let whole = vec![9; 2 * RECORD];
        for len in 0..=whole.len() {
            let checked = check(Path::new("x"), &whole[..len]);
            if len == RECORD || len == 2 * RECORD {
                checked.unwrap();
            } else {
                let expected = format!(
                    "data file 'x': {len} bytes, but records of CIFAR-10 have 3073 (a label and 3x32x32 pixels): {} records and {} bytes",
                    len / RECORD,
                    len % RECORD
                );
                assert_eq!(checked.unwrap_err().to_string(), expected);
            }
        }
    }

    #[test]
    fn labels_are_below_ten() {
        let mut bytes = vec![255; 3 * RECORD];
        bytes.iter_mut().step_by(RECORD).for_each(|label| *label = 9);
        check(Path::new("x"), &bytes).unwrap();
        bytes[2 * RECORD] = 10;
        assert_eq!(
            check(Path::new("x"), &bytes).unwrap_err().to_string(),
            "data file 'x': label 10 of record 2 (from 0), but CIFAR-10 has labels from 0 to 9"
        );
    }
}
