//! A wgpu device with its queue, what its kernels have to know of it, and its pipelines.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pollster::block_on;

use crate::error::GpuError;
use crate::kernel::{ALIGNMENT, Binding, Caps, Place, Plan};
use crate::shader::Shader;

/// An opened adapter.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) caps: Caps,
    /// Most workgroups in a row of a grid.
    max_row: u32,
    pipelines: Mutex<BTreeMap<Variant, Arc<Pipeline>>>,
}

/// A shader's name and which of its buffers are the same bytes.
type Variant = (&'static str, Vec<usize>);

#[derive(Debug)]
struct Pipeline {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// Bytes of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    pub(crate) buffer: &'a wgpu::Buffer,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A dispatch that is ready to be encoded.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
    params: Vec<u32>,
    grid: [u32; 2],
}

impl Prepared {
    /// Encodes it.
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.bind_group, &[]);
        if !self.params.is_empty() {
            pass.set_immediates(0, bytemuck::cast_slice(&self.params));
        }
        pass.dispatch_workgroups(self.grid[0], self.grid[1], 1);
    }
}

impl Gpu {
    /// For a device with the features and limits that [`crate::adapter`] asks for.
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue, caps: Caps, max_row: u32) -> Self {
        Self { device, queue, caps, max_row, pipelines: Mutex::default() }
    }

    /// Runs `make`, and gives what the driver or its validation says against it.
    ///
    /// # Errors
    /// [`GpuError`] by kind.
    pub(crate) fn checked<T>(&self, make: impl FnOnce() -> T) -> Result<T, GpuError> {
        let filters = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let made = make();
        // Scopes end in the opposite order of their beginning; their futures are ready at once on native backends.
        let [internal, validation, memory] = scopes;
        let errors = [block_on(memory.pop()), block_on(validation.pop()), block_on(internal.pop())];
        match errors.into_iter().flatten().next() {
            Some(error) => Err(error.into()),
            None => Ok(made),
        }
    }

    /// Compiles what a plan needs: for distinct tensors, and for outputs in the place of inputs by each of `pairs` (input, output).
    ///
    /// # Errors
    /// If the driver refuses a shader.
    pub(crate) fn compile(&self, plan: &Plan, pairs: &[(usize, usize)]) -> Result<(), GpuError> {
        for dispatch in &plan.dispatches {
            let bindings = &dispatch.bindings;
            let same = |a: &Binding, b: &Binding| (a.offset, a.bytes) == (b.offset, b.bytes);
            self.pipeline(dispatch.shader, (0..bindings.len()).collect())?;
            for &(input, output) in pairs {
                let at = |place: Place| bindings.iter().position(|binding| binding.place == place);
                let (Some(a), Some(b)) = (at(Place::Input(input)), at(Place::Output(output))) else { continue };
                if same(&bindings[a], &bindings[b]) {
                    let mut alias: Vec<usize> = (0..bindings.len()).collect();
                    alias[a.max(b)] = a.min(b);
                    self.pipeline(dispatch.shader, alias)?;
                }
            }
        }
        Ok(())
    }

    /// Binds a plan's dispatches to bytes.
    ///
    /// # Errors
    /// If the driver refuses a shader or a binding.
    pub(crate) fn prepare<'a>(
        &self,
        plan: &Plan,
        resolve: impl Fn(Place) -> Slice<'a>,
    ) -> Result<Vec<Prepared>, GpuError> {
        plan.dispatches
            .iter()
            .map(|dispatch| {
                let name = dispatch.shader.name;
                debug_assert_eq!(dispatch.params.len(), dispatch.shader.params.len(), "{name}: parameters");
                let slices: Vec<Slice<'a>> = dispatch.bindings.iter().map(|at| part(resolve(at.place), *at)).collect();
                let alias = aliases(name, &slices);
                let pipeline = self.pipeline(dispatch.shader, alias.clone())?;
                let distinct = slices.iter().enumerate().filter(|&(index, _)| alias[index] == index);
                let entries: Vec<wgpu::BindGroupEntry<'_>> = distinct
                    .zip(0..)
                    .map(|((_, slice), binding)| wgpu::BindGroupEntry {
                        binding,
                        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                            buffer: slice.buffer,
                            offset: slice.offset,
                            size: wgpu::BufferSize::new(slice.bytes),
                        }),
                    })
                    .collect();
                let bind_group = self.checked(|| {
                    self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                        label: Some(name),
                        layout: &pipeline.layout,
                        entries: &entries,
                    })
                })?;
                let row = dispatch.groups.clamp(1, self.max_row.into());
                let grid = [row as u32, dispatch.groups.max(1).div_ceil(row) as u32];
                Ok(Prepared { pipeline, bind_group, params: dispatch.params.clone(), grid })
            })
            .collect()
    }

    fn pipeline(&self, shader: &'static Shader, alias: Vec<usize>) -> Result<Arc<Pipeline>, GpuError> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let variant = (shader.name, alias);
        if let Some(known) = pipelines.get(&variant) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.checked(|| self.make_pipeline(shader, &variant.1))?);
        pipelines.insert(variant, Arc::clone(&made));
        Ok(made)
    }

    fn make_pipeline(&self, shader: &Shader, alias: &[usize]) -> Pipeline {
        let label = Some(shader.name);
        let source = wgpu::ShaderSource::Wgsl(shader.wgsl(alias).into());
        // SAFETY: kernels guard every access by the sizes in their parameters and end every loop, as the tests check with guard bytes around all tensors;
        // wgpu asks the driver for robust access besides.
        let module = unsafe {
            self.device.create_shader_module_trusted(
                wgpu::ShaderModuleDescriptor { label, source },
                wgpu::ShaderRuntimeChecks::unchecked(),
            )
        };
        let n = (0..alias.len()).filter(|&index| alias[index] == index).count() as u32;
        let entries: Vec<wgpu::BindGroupLayoutEntry> = (0..n)
            .map(|binding| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: false },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout =
            self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 4 * shader.params.len() as u32,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Pipeline { pipeline, layout }
    }
}

/// The bytes of a region that a dispatch binds, rounded up to whole vectors.
fn part(region: Slice<'_>, at: Binding) -> Slice<'_> {
    debug_assert!(at.offset.is_multiple_of(ALIGNMENT) && at.offset + at.bytes <= region.bytes.max(1));
    Slice { offset: region.offset + at.offset, bytes: at.bytes.next_multiple_of(16), ..region }
}

/// For each slice the first one of the same bytes.
fn aliases(name: &str, slices: &[Slice<'_>]) -> Vec<usize> {
    let same = |a: &Slice<'_>, b: &Slice<'_>| a.buffer == b.buffer && a.offset == b.offset && a.bytes == b.bytes;
    let overlap = |a: &Slice<'_>, b: &Slice<'_>| {
        a.buffer == b.buffer && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
    };
    let first = |index: usize| (0..index).find(|&other| same(&slices[other], &slices[index])).unwrap_or(index);
    let alias: Vec<usize> = (0..slices.len()).map(first).collect();
    for (index, slice) in slices.iter().enumerate() {
        let clash = (0..index).find(|&other| !same(&slices[other], slice) && overlap(&slices[other], slice));
        debug_assert!(clash.is_none(), "{name}: buffers {clash:?} and {index} overlap in part");
    }
    alias
}
