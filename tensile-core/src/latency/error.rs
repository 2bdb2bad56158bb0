//! What can go wrong with learned latencies.

use std::path::PathBuf;

use crate::checkpoint::CheckpointError;

/// A fault in learning latencies, saving or loading them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LatencyError {
    /// There is nothing to learn from.
    #[error("no op has been measured: there is nothing to learn from")]
    NoSamples,
    /// The network could not be trained.
    #[error("latencies cannot be learned: {detail}")]
    Training {
        /// Why.
        detail: String,
    },
    /// The file could not be read or written.
    #[error(transparent)]
    File(CheckpointError),
    /// The file holds something else, or is damaged.
    #[error("'{}' is not a file of latencies: {detail}; make one with `tensile profile`", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The file was written by another version of this program.
    #[error("'{}' has latencies in format {found}, this program reads format {expected}; make it again with `tensile profile`", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: String,
        /// The one that is read.
        expected: u32,
    },
    /// The file is of another device.
    #[error("'{}' has latencies of '{found}', not of '{wanted}'; run `tensile profile` on this device", path.display())]
    Device {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose latencies were asked for.
        wanted: String,
    },
}
