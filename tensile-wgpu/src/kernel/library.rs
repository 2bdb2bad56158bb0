//! WGSL functions that shaders share: for [`Shader::libraries`](crate::shader::Shader::libraries).

/// `accurate_exp(vec4<f32>)`: eˣ within some units in the last place.
pub(crate) const EXP: &str = include_str!("library/exp.wgsl");
/// `accurate_tanh(vec4<f32>)`; needs [`EXP`].
pub(crate) const TANH: &str = include_str!("library/tanh.wgsl");
/// `normal_cdf(vec4<f32>)`: the normal distribution function within 3·10⁻⁷; needs [`EXP`].
pub(crate) const NORMAL_CDF: &str = include_str!("library/normal_cdf.wgsl");
/// `philox4x32(counter, key)`: random words by counter.
pub(crate) const PHILOX: &str = include_str!("library/philox.wgsl");
/// `reduce`: sums in a fixed order; see [`reduction`](super::reduction). Needs [`JOINED`] and types.
pub(crate) const REDUCTION: &str = include_str!("library/reduction.wgsl");
/// `joined1` and `joined4`: the numbers that a compensated sum's two parts stand for.
pub(crate) const JOINED: &str = include_str!("library/joined.wgsl");
/// `E`: an element of a row, here a number; with `Sum`. Needs [`EXP`] and [`JOINED`].
pub(crate) const ELEMENT_ONE: &str = include_str!("library/element_one.wgsl");
/// `E`: an element of a row, here a vector; with `Sum`. Needs [`EXP`] and [`JOINED`].
pub(crate) const ELEMENT_FOUR: &str = include_str!("library/element_four.wgsl");
/// Sums and maxima of rows that invocations share.
pub(crate) const ROWS: &str = include_str!("library/rows.wgsl");
/// `add_sums`: adds two compensated sums; `opaque1` and `opaque4`, which keep compilers from simplifying such sums. Needs a parameter `zero` that is 0.
pub(crate) const ADD_SUMS: &str = include_str!("library/add_sums.wgsl");
