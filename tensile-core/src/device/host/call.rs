//! Arguments of a host kernel, as typed slices.
//!
//! This module is one of the few with `unsafe` code: it turns regions of the arena into slices. What makes that sound is stated at [`HostCall::new`].
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::tensor::TensorType;

/// One tensor argument: its bytes in the arena.
#[derive(Clone, Copy, Debug)]
pub struct HostArg<'a> {
    ptr: NonNull<u8>,
    ty: &'a TensorType,
}

// SAFETY: an argument is an address and a type; what may be done at the address is settled by `HostCall::new`.
unsafe impl Send for HostArg<'_> {}
// SAFETY: as above.
unsafe impl Sync for HostArg<'_> {}

impl<'a> HostArg<'a> {
    /// An argument at `ptr`. Whoever builds a [`HostCall`] from it vouches for the pointer.
    pub fn new(ptr: NonNull<u8>, ty: &'a TensorType) -> Self {
        Self { ptr, ty }
    }
}

/// An input and the output that may take its place.
#[derive(Debug)]
pub enum InOut<'a, T> {
    /// Two places.
    Separate(&'a [T], &'a mut [T]),
    /// One place: holds the input, is to hold the output.
    Same(&'a mut [T]),
}

/// A host kernel's arguments and scratch. Kernels run inside the device's thread pool: rayon's parallel iterators use its threads.
#[derive(Debug)]
pub struct HostCall<'a> {
    inputs: &'a [HostArg<'a>],
    outputs: &'a [HostArg<'a>],
    workspace: NonNull<u8>,
    workspace_bytes: usize,
    threads: usize,
    _arena: PhantomData<&'a mut [u8]>,
}

// SAFETY: `new` promises places that nothing else accesses, so the call may move to the thread that runs the kernel.
unsafe impl Send for HostCall<'_> {}
// SAFETY: as above; methods that give mutable slices are to be called once per argument, from whichever thread.
unsafe impl Sync for HostCall<'_> {}

impl<'a> HostCall<'a> {
    /// Bundles the arguments of one call.
    ///
    /// # Safety
    /// For `'a`, every argument's pointer and the workspace must be valid for reads and writes of their sizes, aligned to 64 bytes, and
    /// initialised; nothing else may write inputs or access outputs, updated inputs and workspace; outputs, workspace and updated
    /// inputs must not overlap each other or any input, except that an output may have the very place of one input that its op pairs with it.
    pub unsafe fn new(
        inputs: &'a [HostArg<'a>],
        outputs: &'a [HostArg<'a>],
        workspace: (NonNull<u8>, usize),
        threads: usize,
    ) -> Self {
        Self { inputs, outputs, workspace: workspace.0, workspace_bytes: workspace.1, threads, _arena: PhantomData }
    }

    /// Type of input `index`.
    pub fn input_type(&self, index: usize) -> &'a TensorType {
        self.inputs[index].ty
    }

    /// Type of output `index`.
    pub fn output_type(&self, index: usize) -> &'a TensorType {
        self.outputs[index].ty
    }

    /// Number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Number of threads of the device's pool. Results must not depend on it.
    pub fn threads(&self) -> usize {
        self.threads
    }

    fn assert_type<T: Pod>(ty: &TensorType) {
        assert_eq!(size_of::<T>(), ty.dtype.size(), "kernel reads {ty} as elements of another size");
    }

    /// Elements of input `index`.
    ///
    /// # Panics
    /// If an output has taken the input's place (use [`in_out`](Self::in_out)) or the element size differs.
    pub fn input<T: Pod>(&self, index: usize) -> &'a [T] {
        let arg = self.inputs[index];
        Self::assert_type::<T>(arg.ty);
        assert!(
            self.outputs.iter().all(|output| output.ptr != arg.ptr || output.ty.bytes() == 0 || arg.ty.bytes() == 0),
            "input {index} has been taken over by an output"
        );
        // SAFETY: `new` promises a valid, initialised, aligned place that nobody writes; any bytes are a `Pod` value.
        unsafe { std::slice::from_raw_parts(arg.ptr.as_ptr().cast(), arg.ty.numel()) }
    }

    /// Elements of output `index`. Ask once per call and output.
    ///
    /// # Panics
    /// If the output has the place of an input (use [`in_out`](Self::in_out)) or the element size differs.
    #[allow(clippy::mut_from_ref)] // distinct outputs are distinct places; see `new`
    pub fn output<T: Pod>(&self, index: usize) -> &'a mut [T] {
        let arg = self.outputs[index];
        Self::assert_type::<T>(arg.ty);
        assert!(
            self.inputs.iter().all(|input| input.ptr != arg.ptr || arg.ty.bytes() == 0),
            "output {index} is in place"
        );
        // SAFETY: `new` promises a valid, initialised, aligned place that no other argument shares.
        unsafe { std::slice::from_raw_parts_mut(arg.ptr.as_ptr().cast(), arg.ty.numel()) }
    }

    /// Elements of an input that the op updates. Ask once per call and input.
    #[allow(clippy::mut_from_ref)] // updated inputs are distinct places; see `new`
    pub fn update<T: Pod>(&self, index: usize) -> &'a mut [T] {
        let arg = self.inputs[index];
        Self::assert_type::<T>(arg.ty);
        // SAFETY: `new` promises that nothing else accesses an updated input.
        unsafe { std::slice::from_raw_parts_mut(arg.ptr.as_ptr().cast(), arg.ty.numel()) }
    }

    /// An in-place pair: input and output, or the one place both have. Ask once per call and output.
    pub fn in_out<T: Pod>(&self, input: usize, output: usize) -> InOut<'a, T> {
        let (from, to) = (self.inputs[input], self.outputs[output]);
        Self::assert_type::<T>(from.ty);
        Self::assert_type::<T>(to.ty);
        if from.ptr == to.ptr {
            // SAFETY: `new` promises a place that only this pair has.
            InOut::Same(unsafe { std::slice::from_raw_parts_mut(to.ptr.as_ptr().cast(), to.ty.numel()) })
        } else {
            // SAFETY: `new` promises two distinct places, valid and initialised.
            unsafe {
                InOut::Separate(
                    std::slice::from_raw_parts(from.ptr.as_ptr().cast(), from.ty.numel()),
                    std::slice::from_raw_parts_mut(to.ptr.as_ptr().cast(), to.ty.numel()),
                )
            }
        }
    }

    /// The scratch bytes asked for by `host_workspace`, as elements; content is arbitrary. Ask once per call.
    #[allow(clippy::mut_from_ref)] // the workspace is a place of its own; see `new`
    pub fn workspace<T: Pod>(&self) -> &'a mut [T] {
        // SAFETY: `new` promises a valid place of that size, aligned to 64 bytes, for this call alone.
        unsafe { std::slice::from_raw_parts_mut(self.workspace.as_ptr().cast(), self.workspace_bytes / size_of::<T>()) }
    }
}
