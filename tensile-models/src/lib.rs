//! Model zoo and data sets of Tensile.

#![forbid(unsafe_code)]
