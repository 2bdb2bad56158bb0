//! Errors of wgpu, sorted by what can be done about them.

/// What a driver or wgpu's validation has against a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GpuError {
    /// The driver has no memory for it.
    #[error("out of memory")]
    OutOfMemory,
    /// The call is wrong, or the driver cannot do it.
    #[error("{0}")]
    Refused(String),
}

impl From<wgpu::Error> for GpuError {
    fn from(error: wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { .. } => GpuError::OutOfMemory,
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                GpuError::Refused(description)
            }
        }
    }
}
