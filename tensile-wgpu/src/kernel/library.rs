//! WGSL functions that shaders share: for [`Shader::libraries`](crate::shader::Shader::libraries).
