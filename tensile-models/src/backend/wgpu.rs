//! The wgpu device as a [`Backend`].

use tensile_core::device::host::{Rates, available_memory};
use tensile_core::{Device, DeviceError};
use tensile_sched::{Bytes, Link};
use tensile_wgpu::{AdapterChoice, Kind, OpenError, WgpuDevice, WgpuOptions};

use super::{AdapterReport, AdapterRow, Backend, Choice, GraphicsApi, OpenOptions, Power};

impl Backend for WgpuDevice {
    fn begin_count(&self) -> Bytes {
        count(self).unwrap_or(Bytes::ZERO)
    }

    /// By wgpu's own allocator, without staging. Buffers of an earlier run that were given up only after [`begin_count`](Backend::begin_count) would hide as many of
    /// this one, so it is at least what the arenas are known to have.
    fn counted_bytes(&self, before: Bytes) -> Option<Bytes> {
        count(self).map(|bytes| Bytes(bytes.0.saturating_sub(before.0)).max(self.device_bytes()))
    }

    fn spilled_bytes(&self) -> Bytes {
        WgpuDevice::spilled_bytes(self)
    }

    /// wgpu does not tell of a GPU's memory.
    fn available_bytes(&self) -> Option<Bytes> {
        if self.is_host_memory() { available_memory() } else { None }
    }

    /// As measured when it was opened, on ordinary memory.
    fn link_for(&self, _bytes: Bytes) -> Result<Link, DeviceError> {
        Ok(self.info().link)
    }

    fn is_host_memory(&self) -> bool {
        WgpuDevice::adapter(self).kind == Kind::Software
    }

    fn times_ops(&self) -> bool {
        self.has_timestamps()
    }

    fn adapter(&self) -> Option<AdapterReport> {
        let adapter = WgpuDevice::adapter(self);
        Some(AdapterReport {
            name: adapter.name.clone(),
            driver: adapter.driver.clone(),
            kernels: self.kernels(),
            self_test: self.self_test().to_string(),
            staging_bytes: self.staging_bytes().0,
        })
    }
}

/// Bytes of all live buffers but staging.
fn count(device: &WgpuDevice) -> Option<Bytes> {
    device.allocated_bytes().map(|bytes| Bytes(bytes.0.saturating_sub(device.staging_bytes().0)))
}

pub(super) fn open(choice: &Choice, options: OpenOptions) -> Result<WgpuDevice, OpenError> {
    let mut adapter = AdapterChoice::from_env()?;
    if let Some(asked) = &choice.adapter {
        (adapter.index, adapter.name) = match asked.parse() {
            Ok(number) => (Some(number), None),
            Err(_) => (None, Some(asked.clone())),
        };
    }
    if let Some(api) = choice.graphics_api {
        adapter.backend = Some(match api {
            GraphicsApi::Vulkan => tensile_wgpu::Backend::Vulkan,
            GraphicsApi::Metal => tensile_wgpu::Backend::Metal,
            GraphicsApi::Dx12 => tensile_wgpu::Backend::Dx12,
        });
    }
    if let Some(power) = choice.power {
        adapter.power = match power {
            Power::High => tensile_wgpu::Power::High,
            Power::Low => tensile_wgpu::Power::Low,
        };
    }
    WgpuDevice::open(WgpuOptions {
        adapter,
        host_capacity: options.host_capacity,
        spill_dir: options.spill_dir,
        timestamps: options.op_times,
        allow_faulty: choice.allow_faulty_driver,
        ..WgpuOptions::default()
    })
}

pub(super) fn adapters() -> Vec<AdapterRow> {
    tensile_wgpu::adapters()
        .into_iter()
        .map(|adapter| {
            let opened = WgpuDevice::open(WgpuOptions {
                adapter: AdapterChoice { index: Some(adapter.index), ..AdapterChoice::default() },
                rates: Some(Rates::NOMINAL),
                allow_faulty: true,
                ..WgpuOptions::default()
            });
            AdapterRow {
                number: adapter.index,
                name: adapter.name,
                kind: adapter.kind.to_string(),
                graphics_api: adapter.backend,
                driver: adapter.driver,
                max_buffer_bytes: adapter.max_buffer.0,
                max_binding_bytes: adapter.max_binding.0,
                self_test: opened.map_or_else(|error| error.to_string(), |device| device.self_test().to_string()),
            }
        })
        .collect()
}
