//! Files read whole, with faults that say what is wrong.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::DataError;

/// Files of more bytes, unpacked, are refused rather than read into memory.
const MOST_BYTES: u64 = 4 << 30;

/// Begins a gzip file (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What is wrong with the content of a file.
pub(super) fn fault(path: &Path, reason: impl Into<String>) -> DataError {
    DataError::File { path: path.to_owned(), reason: reason.into() }
}

/// A file that cannot be read.
pub(super) fn unreadable(path: &Path, source: std::io::Error) -> DataError {
    DataError::Read { path: path.to_owned(), source }
}

/// All bytes of a file, unpacked if gzip has packed them.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let unreadable = |source| unreadable(path, source);
    let file = File::open(path).map_err(unreadable)?;
    // Of a file that is not packed this is the length, so that memory does not double while it grows.
    let len = file.metadata().map_err(unreadable)?.len();
    unpack(path, BufReader::new(file), len.min(MOST_BYTES) as usize)
}

/// All bytes of `reader`, unpacked if gzip has packed them; about `len` of them.
pub(super) fn unpack(path: &Path, mut reader: impl BufRead, len: usize) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::with_capacity(len);
    let packed = reader.fill_buf().map_err(|source| unreadable(path, source))?.starts_with(&GZIP);
    let read = if packed {
        MultiGzDecoder::new(reader).take(MOST_BYTES + 1).read_to_end(&mut bytes)
    } else {
        reader.take(MOST_BYTES + 1).read_to_end(&mut bytes)
    };
    match read {
        Err(error) if packed && error.kind() == ErrorKind::UnexpectedEof => {
            let reason = format!("the gzip file is truncated: it ends after {} unpacked bytes", bytes.len());
            Err(fault(path, reason))
        }
        Err(error) if packed => {
            Err(fault(path, format!("the gzip file is broken after {} unpacked bytes: {error}", bytes.len())))
        }
        Err(source) => Err(unreadable(path, source)),
        Ok(_) if bytes.len() as u64 > MOST_BYTES => {
            Err(fault(path, format!("it holds more than {MOST_BYTES} bytes; split it")))
        }
        Ok(_) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn gzip_files_cut_anywhere_are_errors() {
        let text: Vec<u8> = (0..1000u32).map(|index| (index * index % 251) as u8).collect();
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&text).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(unpack(Path::new("x.gz"), &*packed, 0).unwrap(), text);
        assert_eq!(unpack(Path::new("x"), &*text, 0).unwrap(), text);
        for len in 2..packed.len() {
            let error = unpack(Path::new("x.gz"), &packed[..len], 0).unwrap_err().to_string();
            assert!(error.starts_with("data file 'x.gz': the gzip file is truncated: it ends after"), "{len}: {error}");
        }
        let mut broken = packed;
        let middle = broken.len() / 2;
        broken[middle] ^= 0xff;
        let error = unpack(Path::new("x.gz"), &*broken, 0).unwrap_err().to_string();
        assert!(error.contains("the gzip file is "), "{error}");
    }
}
