//! WGSL functions that shaders share: for [`Shader::libraries`](crate::shader::Shader::libraries).

/// `accurate_exp(vec4<f32>)`: eˣ within some units in the last place.
pub(crate) const EXP: &str = include_str!("library/exp.wgsl");
/// `accurate_tanh(vec4<f32>)`; needs [`EXP`].
pub(crate) const TANH: &str = include_str!("library/tanh.wgsl");
/// `normal_cdf(vec4<f32>)`: the normal distribution function within 3·10⁻⁷; needs [`EXP`].
pub(crate) const NORMAL_CDF: &str = include_str!("library/normal_cdf.wgsl");
/// `philox4x32(counter, key)`: random words by counter.
pub(crate) const PHILOX: &str = include_str!("library/philox.wgsl");
