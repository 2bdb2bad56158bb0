//! Adapters: what the machine has, which one to take, and what is asked of it.

use std::fmt;

use pollster::block_on;
use tensile_sched::Bytes;

use crate::device::Emulation;
use crate::gpu::Gpu;
use crate::kernel::{ALIGNMENT, Caps};

/// An interface to graphics hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Linux, Windows, Android; software too.
    Vulkan,
    /// macOS and iOS.
    Metal,
    /// Windows.
    Dx12,
}

impl Backend {
    /// All of them.
    pub const ALL: [Backend; 3] = [Backend::Vulkan, Backend::Metal, Backend::Dx12];

    /// As written on a command line: `vulkan`, `metal`, `dx12`.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Vulkan => "vulkan",
            Backend::Metal => "metal",
            Backend::Dx12 => "dx12",
        }
    }

    /// The backend of a name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name().eq_ignore_ascii_case(name.trim()))
    }

    fn to_wgpu(self) -> wgpu::Backends {
        match self {
            Backend::Vulkan => wgpu::Backends::VULKAN,
            Backend::Metal => wgpu::Backends::METAL,
            Backend::Dx12 => wgpu::Backends::DX12,
        }
    }
}

/// What to prefer where a machine has several adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Power {
    /// The fastest: a discrete GPU before an integrated one, both before software.
    #[default]
    High,
    /// An integrated GPU before a discrete one, both before software.
    Low,
}

/// Which adapter to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// Only of this backend.
    pub backend: Option<Backend>,
    /// Only with this in its name or its driver's, in any case.
    pub name: Option<String>,
    /// The one of this number in the list of [`adapters`].
    pub index: Option<usize>,
    /// Which of several.
    pub power: Power,
}

impl AdapterChoice {
    /// What the environment asks for, in the variables that other programs on wgpu read too: `WGPU_BACKEND` (`vulkan`, `metal`, `dx12`), `WGPU_ADAPTER_NAME`,
    /// `WGPU_POWER_PREF` (`high`, `low`).
    ///
    /// # Errors
    /// [`AdapterError::Variable`] if one of them says something else.
    pub fn from_env() -> Result<Self, AdapterError> {
        let get = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let wrong =
            |variable, value: &str, choices| AdapterError::Variable { variable, value: value.to_owned(), choices };
        let backend = match get("WGPU_BACKEND") {
            Some(value) => {
                Some(Backend::find(&value).ok_or_else(|| wrong("WGPU_BACKEND", &value, "vulkan, metal, dx12"))?)
            }
            None => None,
        };
        let power = match get("WGPU_POWER_PREF").as_deref() {
            None | Some("high") => Power::High,
            Some("low") => Power::Low,
            Some(value) => return Err(wrong("WGPU_POWER_PREF", value, "high, low")),
        };
        Ok(Self { backend, name: get("WGPU_ADAPTER_NAME"), index: None, power })
    }
}

/// Where an adapter's work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A card of its own.
    Discrete,
    /// Beside the processor, with its memory.
    Integrated,
    /// In a virtual machine.
    Virtual,
    /// On the processor.
    Software,
    /// The driver does not say.
    Unknown,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Discrete => "discrete GPU",
            Kind::Integrated => "integrated GPU",
            Kind::Virtual => "virtual GPU",
            Kind::Software => "software",
            Kind::Unknown => "unknown kind",
        })
    }
}

/// An adapter, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Its number in the list, for [`AdapterChoice::index`].
    pub index: usize,
    /// Of the hardware.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// How it is reached.
    pub backend: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Most bytes of one buffer.
    pub max_buffer: Bytes,
    /// Most bytes of a buffer that a kernel sees at a time.
    pub max_binding: Bytes,
    /// Why it cannot be used, if so.
    pub lacks: Option<&'static str>,
}

/// Why no adapter could be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// There is none.
    #[error(
        "no adapter for wgpu: no driver for Vulkan, Metal or DX12 was found. Install your GPU's driver (on Linux with its Vulkan part: mesa-vulkan-drivers or the vendor's), or \
         a software one (Mesa's lavapipe, in mesa-vulkan-drivers), or run on the processor with --backend cpu"
    )]
    NoDriver,
    /// There are some, and none is as asked for.
    #[error("no adapter fits {wanted}; there are: {}", found.join("; "))]
    NoMatch {
        /// What was asked for.
        wanted: String,
        /// What there is.
        found: Vec<String>,
    },
    /// The adapter lacks what kernels need.
    #[error("adapter '{name}' cannot be used: it lacks {lacks}")]
    Lacks {
        /// Its name.
        name: String,
        /// What it lacks.
        lacks: &'static str,
    },
    /// The driver refuses.
    #[error("adapter '{name}' cannot be opened: {detail}")]
    Refused {
        /// Its name.
        name: String,
        /// What the driver says.
        detail: String,
    },
    /// An environment variable says what cannot be.
    #[error("{variable}={value}: choose one of {choices}")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        choices: &'static str,
    },
}

impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, name, driver, backend, kind, .. } = self;
        write!(f, "{index} {name} ({kind}, {backend}, {driver})")
    }
}

fn info(index: usize, adapter: &wgpu::Adapter) -> AdapterInfo {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ");
    let driver = driver.trim();
    AdapterInfo {
        index,
        name: info.name,
        driver: if driver.is_empty() { "unknown driver".to_owned() } else { driver.to_owned() },
        backend: info.backend.to_str(),
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
            wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
            wgpu::DeviceType::VirtualGpu => Kind::Virtual,
            wgpu::DeviceType::Cpu => Kind::Software,
            wgpu::DeviceType::Other => Kind::Unknown,
        },
        max_buffer: Bytes(limits.max_buffer_size),
        max_binding: Bytes(limits.max_storage_buffer_binding_size),
        lacks: lacks(adapter),
    }
}

/// Bytes of parameters that a dispatch may have.
const IMMEDIATES: u32 = 128;

/// What an adapter lacks for the kernels here.
fn lacks(adapter: &wgpu::Adapter) -> Option<&'static str> {
    let limits = adapter.limits();
    let compute = adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS);
    let needs = [
        (compute, "compute shaders"),
        (adapter.features().contains(wgpu::Features::IMMEDIATES), "immediates (push constants)"),
        (limits.max_immediate_size >= IMMEDIATES, "128 bytes of immediates (push constants)"),
        (limits.max_storage_buffers_per_shader_stage >= 8, "8 storage buffers in a shader"),
        (limits.max_compute_invocations_per_workgroup >= 256, "workgroups of 256"),
        (limits.max_compute_workgroup_storage_size >= 16 << 10, "16 KiB of workgroup memory"),
        (limits.min_storage_buffer_offset_alignment <= ALIGNMENT as u32, "bindings at multiples of 256 bytes"),
    ];
    needs.into_iter().find(|(has, _)| !has).map(|(_, what)| what)
}

fn all(backend: Option<Backend>) -> Vec<wgpu::Adapter> {
    let backends =
        backend.map_or(wgpu::Backends::PRIMARY, Backend::to_wgpu) & wgpu::Instance::enabled_backend_features();
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    block_on(wgpu::Instance::new(descriptor).enumerate_adapters(backends))
}

/// The machine's adapters.
pub fn adapters() -> Vec<AdapterInfo> {
    all(None).iter().enumerate().map(|(index, adapter)| info(index, adapter)).collect()
}

fn pick(choice: &AdapterChoice) -> Result<(wgpu::Adapter, AdapterInfo), AdapterError> {
    let all: Vec<(wgpu::Adapter, AdapterInfo)> = all(None)
        .into_iter()
        .enumerate()
        .map(|(index, adapter)| {
            let info = info(index, &adapter);
            (adapter, info)
        })
        .collect();
    if all.is_empty() {
        return Err(AdapterError::NoDriver);
    }
    let found = all.iter().map(|(_, info)| info.to_string()).collect();
    let name = choice.name.as_ref().map(|name| name.to_lowercase());
    let fits = |info: &AdapterInfo| {
        choice.index.is_none_or(|index| index == info.index)
            && choice.backend.is_none_or(|backend| backend.name() == info.backend)
            && name
                .as_ref()
                .is_none_or(|name| info.name.to_lowercase().contains(name) || info.driver.to_lowercase().contains(name))
    };
    let rank = |kind: Kind| match (choice.power, kind) {
        (Power::High, Kind::Discrete) | (Power::Low, Kind::Integrated) => 0,
        (Power::High, Kind::Integrated) | (Power::Low, Kind::Discrete) => 1,
        (_, Kind::Virtual) => 2,
        (_, Kind::Unknown) => 3,
        (_, Kind::Software) => 4,
    };
    // The first of the best, and one that can be used before one that cannot.
    let best = all.into_iter().filter(|(_, info)| fits(info)).min_by_key(|(_, info)| (info.lacks, rank(info.kind)));
    let Some((adapter, info)) = best else {
        let mut wanted = Vec::new();
        wanted.extend(choice.index.map(|index| format!("number {index}")));
        wanted.extend(choice.backend.map(|backend| format!("backend {}", backend.name())));
        wanted.extend(choice.name.as_ref().map(|name| format!("name '{name}'")));
        return Err(AdapterError::NoMatch { wanted: wanted.join(", "), found });
    };
    match info.lacks {
        Some(lacks) => Err(AdapterError::Lacks { name: info.name, lacks }),
        None => Ok((adapter, info)),
    }
}

/// Opens an adapter with its own limits for buffers and bindings, and the WebGPU defaults for the rest.
///
/// # Errors
/// [`AdapterError`].
pub(crate) fn open(
    choice: &AdapterChoice,
    timestamps: bool,
    emulation: Emulation,
) -> Result<(Gpu, AdapterInfo), AdapterError> {
    let (adapter, info) = pick(choice)?;
    let has = adapter.limits();
    let mut features = wgpu::Features::IMMEDIATES;
    if timestamps {
        let wanted = wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        if !adapter.features().contains(wanted) {
            return Err(AdapterError::Lacks {
                name: info.name,
                lacks: "timestamps inside passes, which profiling needs",
            });
        }
        features |= wanted;
    }
    let limits = wgpu::Limits {
        max_buffer_size: has.max_buffer_size,
        max_storage_buffer_binding_size: has.max_storage_buffer_binding_size,
        max_immediate_size: IMMEDIATES,
        ..wgpu::Limits::default()
    };
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("tensile"),
        required_features: features,
        required_limits: limits.clone(),
        memory_hints: wgpu::MemoryHints::MemoryUsage,
        ..wgpu::DeviceDescriptor::default()
    };
    let (device, queue) = block_on(adapter.request_device(&descriptor))
        .map_err(|error| AdapterError::Refused { name: info.name.clone(), detail: error.to_string() })?;
    let row = emulation.row.unwrap_or(limits.max_compute_workgroups_per_dimension);
    Ok((Gpu::new(device, queue, caps(&info, emulation), row), info))
}

fn caps(info: &AdapterInfo, emulation: Emulation) -> Caps {
    let software = (info.kind == Kind::Software) != emulation.other_kernels;
    Caps {
        max_binding: emulation.binding.unwrap_or(u64::MAX).min(info.max_binding.0) / ALIGNMENT * ALIGNMENT,
        software,
        // A tenth of a second and less, at rates that slow adapters of each kind reach.
        max_flops: if software { 4e8 } else { 2e10 },
    }
}
