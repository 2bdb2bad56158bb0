//! Layers, and the first values of their parameters.

mod init;

pub use init::init_value;
