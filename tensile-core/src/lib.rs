//! Tensors, ops, graphs, autodiff, devices and the executor of Tensile.
