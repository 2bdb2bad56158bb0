//! Heavy kernels of the host device: matrix products, convolutions and reductions over channels.
//!
//! They use no memory but their arguments and the scratch that is handed in, and their results have the same bits on any number of threads.

pub(crate) mod channels;
pub(crate) mod conv;
pub(crate) mod depthwise;
pub(crate) mod gemm;
pub(crate) mod isa;
pub(crate) mod window;
pub(crate) mod work;
