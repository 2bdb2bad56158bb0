//! The IDX files of MNIST (LeCun, Cortes, Burges: *The MNIST database of handwritten digits*, <http://yann.lecun.com/exdb/mnist/>, section "File formats").
//!
//! Big-endian: a magic number of two zero bytes, the type of the elements (8: bytes) and the number of dimensions; the dimensions, four bytes each; then the elements.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{self, fault};
use super::stored::{Normalize, Stored};
use super::{DataError, Splits};

/// Mean and standard deviation of MNIST's training pixels.
const MNIST: [[f32; 2]; 1] = [[0.1307, 0.3081]];

/// The files, without `.gz`.
pub(super) const FILES: [&str; 4] =
    ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

/// The file of a name, or its gzip-compressed form, if it is there.
pub(super) fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    [name.to_owned(), format!("{name}.gz")].into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// Greyscale images and their labels from the four files of a folder; labels are below `classes`. Also gives what black is.
pub(super) fn read(folder: &Path, classes: usize) -> Result<(Splits, Vec<f32>), DataError> {
    let path = |name: &str| {
        find(folder, name).ok_or_else(|| {
            fault(&folder.join(name), format!("it is missing, and {name}.gz too; MNIST has {}", FILES.join(", ")))
        })
    };
    // All are found before any is read.
    let [train_images, train_labels, test_images, test_labels] = FILES.map(path);
    let (train_images, train_labels) = (train_images?, train_labels?);
    let (test_images, test_labels) = (test_images?, test_labels?);
    let normalize = Arc::new(Normalize::new(&MNIST));
    let mut train = split(&train_images, &train_labels, classes, &normalize)?;
    let mut test = split(&test_images, &test_labels, classes, &normalize)?;
    if test.shape != train.shape {
        let [[_, height, width], [_, train_height, train_width]] = [test.shape, train.shape];
        let reason = format!("images of {height}x{width}, but those for training are {train_height}x{train_width}");
        return Err(fault(&test_images, reason));
    }
    let classes = train.classes.max(test.classes);
    (train.classes, test.classes) = (classes, classes);
    Ok((Splits { train: Arc::new(train), test: Arc::new(test) }, normalize.black()))
}

fn split(images: &Path, labels: &Path, classes: usize, normalize: &Arc<Normalize>) -> Result<Stored, DataError> {
    let ([n_images, height, width], pixels) = parse(images, file::read(images)?)?;
    let ([n_labels], label_bytes) = parse(labels, file::read(labels)?)?;
    if n_images == 0 || height == 0 || width == 0 {
        return Err(fault(images, format!("no pixels: {n_images} images of {height}x{width}")));
    }
    if n_labels != n_images {
        return Err(fault(labels, format!("{n_labels} labels for the {n_images} images of '{}'", images.display())));
    }
    let labels_at = header(1);
    let label_bytes = label_bytes[labels_at..].to_vec();
    if let Some((index, label)) = label_bytes.iter().enumerate().find(|(_, label)| usize::from(**label) >= classes) {
        let reason = format!(
            "label {label} of sample {index} (from 0) is not below the {classes} classes that the model tells apart"
        );
        return Err(fault(labels, reason));
    }
    Ok(Stored {
        shape: [1, height, width],
        classes: label_bytes.iter().max().map_or(0, |&label| usize::from(label) + 1),
        bytes: pixels,
        first: header(3),
        stride: height * width,
        labels: label_bytes,
        normalize: Arc::clone(normalize),
    })
}

/// Bytes before the elements.
const fn header(dims: usize) -> usize {
    4 + 4 * dims
}

/// The dimensions of a file of bytes that has `DIMS` of them, and all its bytes.
fn parse<const DIMS: usize>(path: &Path, bytes: Vec<u8>) -> Result<([usize; DIMS], Vec<u8>), DataError> {
    let begins = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect::<String>();
    let magic = [0, 0, 8, DIMS as u8];
    if bytes.len() >= 4 && bytes[..4] != magic {
        return Err(fault(
            path,
            format!("it begins with {begins}, but an IDX file of bytes in {DIMS} dimensions with 0000080{DIMS}"),
        ));
    }
    let (found, header) = (bytes.len(), header(DIMS));
    if found < header {
        return Err(fault(
            path,
            format!("{found} bytes, but the header of an IDX file with {DIMS} dimensions has {header}"),
        ));
    }
    let dims: [u32; DIMS] = std::array::from_fn(|dim| {
        let at = 4 + 4 * dim;
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    });
    // No wider than 3 x 32 bits and the header, so it fits.
    let expected = dims.iter().map(|&dim| u128::from(dim)).product::<u128>() + header as u128;
    if found as u128 != expected {
        let sizes = dims.map(|dim| dim.to_string()).join("x");
        return Err(fault(path, format!("{found} bytes, but by its header ({sizes}) it should have {expected}")));
    }
    Ok((dims.map(|dim| dim as usize), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idx(magic: u32, dims: &[u32], elements: usize) -> Vec<u8> {
        let mut bytes = magic.to_be_bytes().to_vec();
        dims.iter().for_each(|dim| bytes.extend(dim.to_be_bytes()));
        bytes.resize(bytes.len() + elements, 7);
        bytes
    }

    fn error(bytes: Vec<u8>) -> String {
        parse::<3>(Path::new("x"), bytes).unwrap_err().to_string()
    }

    #[test]
    fn files_cut_anywhere_are_errors() {
        let whole = idx(0x803, &[3, 4, 5], 60);
        assert_eq!(parse::<3>(Path::new("x"), whole.clone()).unwrap().0, [3, 4, 5]);
        for len in 0..16 {
            let expected =
                format!("data file 'x': {len} bytes, but the header of an IDX file with 3 dimensions has 16");
            assert_eq!(error(whole[..len].to_vec()), expected);
        }
        for len in 16..whole.len() {
            let expected = format!("data file 'x': {len} bytes, but by its header (3x4x5) it should have 76");
            assert_eq!(error(whole[..len].to_vec()), expected);
        }
        let longer = [whole, vec![0]].concat();
        assert_eq!(error(longer), "data file 'x': 77 bytes, but by its header (3x4x5) it should have 76");
    }

    #[test]
    fn other_files_are_errors() {
        for (magic, begins) in [(0x801, "00000801"), (0xd03, "00000d03"), (0x0308_0000, "03080000"), (!0, "ffffffff")] {
            let expected = format!(
                "data file 'x': it begins with {begins}, but an IDX file of bytes in 3 dimensions with 00000803"
            );
            assert_eq!(error(idx(magic, &[1, 1, 1], 1)), expected);
        }
    }

    #[test]
    fn absurd_sizes_are_errors_and_nothing_is_allocated() {
        assert_eq!(
            error(idx(0x803, &[u32::MAX; 3], 10)),
            format!(
                "data file 'x': 26 bytes, but by its header (4294967295x4294967295x4294967295) it should have {}",
                u128::from(u32::MAX).pow(3) + 16
            )
        );
    }
}
