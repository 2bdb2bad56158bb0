//! Images as rows of numbers: pixels, then the label.

use std::path::Path;
use std::sync::Arc;

use super::file::{self, fault};
use super::{DataError, Dataset, Draw, Sample, Splits};
use crate::zoo::Task;

/// The digits, compressed, as they lie in the repository.
const DIGITS: &[u8] = include_bytes!("../../data/digits.csv.gz");

/// Every fifth sample is for testing.
const TEST_EVERY: usize = 5;

struct Table {
    shape: [usize; 3],
    classes: usize,
    /// One row per sample, scaled to [0, 1].
    pixels: Vec<f32>,
    labels: Vec<i32>,
}

/// Images read from a CSV file (gzip-compressed or not): on each row the pixels of a sample and its label, an integer from 0. Pixels are
/// divided by the largest in the file. Every fifth row is for testing.
pub struct CsvImages {
    table: Arc<Table>,
    rows: Vec<usize>,
}

impl std::fmt::Debug for CsvImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CsvImages {{ {} rows of {:?} }}", self.rows.len(), self.table.shape)
    }
}

impl CsvImages {
    /// The 1,797 handwritten digits (8×8, ten classes) that the program carries.
    pub fn digits() -> Splits {
        let path = Path::new("digits.csv.gz");
        file::unpack(path, DIGITS, 0)
            .and_then(|bytes| Self::parse(path, bytes, [1, 8, 8]))
            .expect("the digits in the program are well-formed")
    }

    /// Reads a file whose samples have `shape`.
    ///
    /// # Errors
    /// [`DataError`] naming file and row.
    pub fn read(path: &Path, shape: [usize; 3]) -> Result<Splits, DataError> {
        Self::parse(path, file::read(path)?, shape)
    }

    fn parse(path: &Path, bytes: Vec<u8>, shape: [usize; 3]) -> Result<Splits, DataError> {
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            fault(
                path,
                format!(
                    "no text, and so no CSV, from byte {at} on; IDX and CIFAR-10 are read by the name of their folder"
                ),
            )
        })?;
        let n_pixels: usize = shape.iter().product();
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for (index, line) in text.lines().enumerate() {
            let fault = |reason| DataError::Content { path: path.to_owned(), row: index + 1, reason };
            let fields: Vec<&str> = line.split(',').collect();
            if fields.len() != n_pixels + 1 {
                let expected = n_pixels + 1;
                return Err(fault(format!(
                    "{} fields instead of {expected} (the {n_pixels} pixels of a {}x{}x{} image, and a label)",
                    fields.len(),
                    shape[0],
                    shape[1],
                    shape[2]
                )));
            }
            for field in &fields[..n_pixels] {
                let pixel: f32 = field.trim().parse().map_err(|_| fault(format!("'{field}' is no number")))?;
                if !pixel.is_finite() {
                    return Err(fault(format!("'{field}' is not finite")));
                }
                pixels.push(pixel);
            }
            let label = fields[n_pixels].trim();
            match label.parse::<u16>() {
                Ok(label) => labels.push(i32::from(label)),
                Err(_) => return Err(fault(format!("label '{label}' is not an integer from 0 to 65535"))),
            }
        }
        if labels.len() < TEST_EVERY {
            let reason = format!("{} rows; at least {TEST_EVERY} are needed to split off a test set", labels.len());
            return Err(DataError::Content { path: path.to_owned(), row: labels.len(), reason });
        }
        let largest = pixels.iter().fold(0.0f32, |largest, pixel| largest.max(pixel.abs()));
        if largest > 0.0 {
            pixels.iter_mut().for_each(|pixel| *pixel /= largest);
        }
        let classes = labels.iter().max().map_or(0, |&label| label as usize + 1);
        let (test, train) = (0..labels.len()).partition(|row| row % TEST_EVERY == 0);
        let table = Arc::new(Table { shape, classes, pixels, labels });
        let split = |rows| Arc::new(CsvImages { table: Arc::clone(&table), rows });
        Ok(Splits { train: split(train), test: split(test) })
    }
}

impl Dataset for CsvImages {
    fn task(&self) -> Task {
        Task::Images { shape: self.table.shape }
    }

    fn classes(&self) -> usize {
        self.table.classes
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn sample(&self, index: usize, _draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
        let row = self.rows[index];
        let pixels = sample.f32(0);
        let n_pixels = pixels.len();
        pixels.copy_from_slice(&self.table.pixels[row * n_pixels..][..n_pixels]);
        sample.labels[0] = self.table.labels[row];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Batch;

    #[test]
    fn digits_are_whole() {
        let splits = CsvImages::digits();
        assert_eq!((splits.train.len(), splits.test.len()), (1437, 360));
        let task = Task::Images { shape: [1, 8, 8] };
        assert_eq!((splits.train.task(), splits.train.classes()), (task.clone(), 10));
        let mut batch = Batch::new(&task, 1);
        splits.test.sample(0, Draw::evaluation(0), batch.sample(0)).unwrap();
        assert_eq!((batch.sample(0).f32(0)[2], batch.labels()), (5.0 / 16.0, &[0][..]));
        for index in 0..1437 {
            splits.train.sample(index, Draw::evaluation(0), batch.sample(0)).unwrap();
            assert!((0..10).contains(&batch.labels()[0]));
        }
    }

    #[test]
    fn faults_name_file_and_row() {
        let parse = |text: &str| CsvImages::parse(Path::new("x.csv"), text.into(), [1, 1, 2]).unwrap_err().to_string();
        assert_eq!(
            parse("1,2,0\n1,2\n"),
            "data file 'x.csv', row 2: 2 fields instead of 3 (the 2 pixels of a 1x1x2 image, and a label)"
        );
        assert_eq!(parse("1,a,0\n"), "data file 'x.csv', row 1: 'a' is no number");
        assert_eq!(parse("1,NaN,0\n"), "data file 'x.csv', row 1: 'NaN' is not finite");
        assert_eq!(parse("1,2,-1\n"), "data file 'x.csv', row 1: label '-1' is not an integer from 0 to 65535");
        assert!(parse("1,2,3\n").contains("at least 5"));
    }

    #[test]
    fn other_files_are_errors() {
        let error = CsvImages::parse(Path::new("x"), vec![b'1', b',', 0xff], [1, 1, 2]).unwrap_err().to_string();
        assert_eq!(
            error,
            "data file 'x': no text, and so no CSV, from byte 2 on; IDX and CIFAR-10 are read by the name of their folder"
        );
    }
}
