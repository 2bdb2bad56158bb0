//! A small interpreter of graphs: the reference that other ways to run a graph are compared with.
//!
//! It runs the host kernels one after another in the graph's order, each value in an aligned buffer of its own: no plan, no arena, no streams.
//! Fresh buffers and scratch hold NaN patterns, and a guard behind every buffer shows writes past its end.
//! For tests: it is compiled with the feature `conformance` only.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};

use crate::device::host::{HostArg, HostCall};
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, OpNode, Value};
use crate::nn::init_value;
use crate::op::{Op, OpDef, OpError};
use crate::tensor::{DType, TensorType};

/// Fills fresh buffers: NaN as f32, −1 as i32.
const POISON: u8 = 0xFF;
/// Stands behind every buffer.
const GUARD: u8 = 0xA5;

/// 64 bytes at an aligned address.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Aligned bytes with a guard line behind them.
struct Buffer {
    lines: Vec<Line>,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        let n_lines = bytes.div_ceil(64) + 1;
        let mut buffer = Self { lines: vec![Line([POISON; 64]); n_lines], bytes };
        bytemuck::cast_slice_mut::<Line, u8>(&mut buffer.lines)[bytes..].fill(GUARD);
        buffer
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        bytemuck::cast_slice_mut::<Line, u8>(&mut buffer.lines)[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }

    fn ptr(&mut self) -> NonNull<u8> {
        NonNull::new(self.lines.as_mut_ptr().cast()).expect("a vector's pointer is not null")
    }

    fn guard_is_intact(&self) -> bool {
        bytemuck::cast_slice::<Line, u8>(&self.lines)[self.bytes..].iter().all(|&byte| byte == GUARD)
    }
}

/// What a run left behind, as raw little-endian bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes of each output of the graph, by name.
    pub outputs: BTreeMap<String, Vec<u8>>,
    /// Bytes of each persistent tensor after the step, by name.
    pub persistents: BTreeMap<String, Vec<u8>>,
}

impl Outcome {
    /// An f32 output.
    ///
    /// # Panics
    /// If there is no such output.
    pub fn output(&self, name: &str) -> Vec<f32> {
        floats(self.outputs.get(name).unwrap_or_else(|| panic!("no output '{name}'")))
    }

    /// An f32 persistent tensor after the step.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn persistent(&self, name: &str) -> Vec<f32> {
        floats(self.persistents.get(name).unwrap_or_else(|| panic!("no persistent tensor '{name}'")))
    }
}

/// How to interpret a graph.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    /// Threads for the kernels.
    pub threads: usize,
    /// Whether outputs take over the bytes of inputs wherever an op allows it and the input is not used again.
    pub in_place: bool,
}

/// Runs a graph on `threads` threads without any in-place use: [`Interpreter::run`].
pub fn run(graph: &Graph, inputs: &[(&str, Vec<u8>)], persistents: &[(&str, Vec<u8>)], threads: usize) -> Outcome {
    Interpreter { threads, in_place: false }.run(graph, inputs, persistents)
}

impl Interpreter {
    /// Runs every op once, in order. Persistent tensors that are not given begin with their initial value for seed 0.
    ///
    /// # Panics
    /// If an input is missing, unknown or of the wrong size, or a kernel writes past the end of a buffer.
    pub fn run(self, graph: &Graph, inputs: &[(&str, Vec<u8>)], persistents: &[(&str, Vec<u8>)]) -> Outcome {
        let mut buffers: Vec<Option<Buffer>> = (0..graph.n_values()).map(|_| None).collect();
        for (name, _) in inputs {
            assert!(graph.inputs().any(|(other, _)| other == *name), "the graph has no input '{name}'");
        }
        for (name, _) in persistents {
            assert!(graph.persistents().any(|(p, _)| p.name == *name), "the graph has no persistent tensor '{name}'");
        }
        for (name, value) in graph.inputs() {
            let given = inputs.iter().find(|(other, _)| *other == name);
            let (_, bytes) = given.unwrap_or_else(|| panic!("input '{name}' is not given"));
            assert_eq!(bytes.len(), graph.ty(value).bytes(), "input '{name}' is {}", graph.ty(value));
            buffers[value.index()] = Some(Buffer::from_bytes(bytes));
        }
        for (persistent, value) in graph.persistents() {
            let given = persistents.iter().find(|(other, _)| *other == persistent.name);
            let bytes = given.map_or_else(|| init_value(persistent, 0), |(_, bytes)| bytes.clone());
            assert_eq!(bytes.len(), persistent.ty.bytes(), "'{}' is {}", persistent.name, persistent.ty);
            buffers[value.index()] = Some(Buffer::from_bytes(&bytes));
        }
        let ops: Vec<&OpNode> = graph.ops().collect();
        // Position of the last op that reads each storage; outputs of the graph and persistent tensors are never given away.
        let mut last_use: Vec<usize> = vec![0; graph.n_values()];
        for (position, op) in ops.iter().enumerate() {
            for &input in &op.inputs {
                last_use[graph.storage(input).index()] = position;
            }
        }
        let kept = graph.outputs().map(|(_, value)| value).chain(graph.persistents().map(|(_, value)| value));
        for value in kept {
            last_use[graph.storage(value).index()] = usize::MAX;
        }
        for (position, op) in ops.iter().enumerate() {
            self.run_op(graph, op, position, &last_use, &mut buffers);
        }
        let bytes =
            |value: Value| buffers[graph.storage(value).index()].as_ref().expect("computed").as_bytes().to_vec();
        Outcome {
            outputs: graph.outputs().map(|(name, value)| (name.to_owned(), bytes(value))).collect(),
            persistents: graph.persistents().map(|(p, value)| (p.name.clone(), bytes(value))).collect(),
        }
    }

    fn run_op(self, graph: &Graph, op: &OpNode, position: usize, last_use: &[usize], buffers: &mut [Option<Buffer>]) {
        let def = op.op.def();
        let types = |values: &[Value]| values.iter().map(|&value| graph.ty(value).clone()).collect::<Vec<TensorType>>();
        let (input_types, output_types) = (types(&op.inputs), types(&op.outputs));
        let storages: Vec<Value> = op.inputs.iter().map(|&value| graph.storage(value)).collect();
        let mut taken: Vec<Option<usize>> = vec![None; op.outputs.len()];
        if self.in_place {
            for &(input, output) in def.in_place() {
                let storage = storages[input];
                let same_size = input_types[input].bytes() == output_types[output].bytes();
                let seen_once = storages.iter().filter(|&&other| other == storage).count() == 1;
                if same_size && seen_once && last_use[storage.index()] == position {
                    taken[output] = Some(storage.index());
                }
            }
        }
        for (&value, taken) in op.outputs.iter().zip(&taken) {
            if taken.is_none() {
                buffers[value.index()] = Some(Buffer::new(graph.ty(value).bytes()));
            }
        }
        let mut place = |index: usize| buffers[index].as_mut().expect("computed before it is read").ptr();
        let inputs: Vec<HostArg<'_>> =
            storages.iter().zip(&input_types).map(|(storage, ty)| HostArg::new(place(storage.index()), ty)).collect();
        let outputs: Vec<HostArg<'_>> = (op.outputs.iter().zip(&taken).zip(&output_types))
            .map(|((value, taken), ty)| HostArg::new(place(taken.unwrap_or(value.index())), ty))
            .collect();
        let mut workspace = Buffer::new(def.host_workspace(&input_types, &output_types, self.threads));
        // SAFETY: each argument points at a live, aligned, initialised buffer of its size; only this call uses the buffers now; outputs and
        // scratch are buffers of their own, except for outputs that have the place of the one input that the op pairs with them.
        let call = unsafe { HostCall::new(&inputs, &outputs, (workspace.ptr(), workspace.bytes), self.threads) };
        thread_pool(self.threads).install(|| def.host_kernel(&call));
        for (value, taken) in op.outputs.iter().zip(taken) {
            if let Some(from) = taken {
                buffers[value.index()] = buffers[from].take();
            }
        }
        let mut touched = storages.iter().chain(&op.outputs).filter_map(|value| buffers[value.index()].as_ref());
        assert!(
            workspace.guard_is_intact() && touched.all(Buffer::guard_is_intact),
            "{}: op '{}' wrote past the end of a buffer",
            op.label,
            def.name()
        );
    }
}

fn thread_pool(threads: usize) -> &'static rayon::ThreadPool {
    const MOST: usize = 16;
    static POOLS: [OnceLock<rayon::ThreadPool>; MOST + 1] = [const { OnceLock::new() }; MOST + 1];
    assert!((1..=MOST).contains(&threads), "tests use 1 to {MOST} threads, not {threads}");
    POOLS[threads].get_or_init(|| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a few threads can be started")
    })
}

/// Bytes of f32 values.
pub fn float_bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Bytes of i32 values.
pub fn int_bytes(values: &[i32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// f32 values of bytes.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// i32 values of bytes.
pub fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The number source of the reference values: `n` numbers in [−1, 1) by splitmix64, the first at `seed`·2³².
pub fn values(n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64)
        .map(|index| {
            let mut z = (seed << 32).wrapping_add(index).wrapping_add(0x9E37_79B9_7F4A_7C15);
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^= z >> 31;
            ((z >> 40) as f64 / (1u64 << 23) as f64 - 1.0) as f32
        })
        .collect()
}

/// The loss Σ y·r for a given upstream gradient r: inputs y and r of one f32 type, one f32 output. For tests of gradients; its gradient by y
/// is r itself, so it must be the loss, not a part of it.
#[derive(Clone, Debug)]
pub struct Project;

impl OpDef for Project {
    fn name(&self) -> &'static str {
        "project"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [y, r] if y == r && y.dtype == DType::F32 => Ok(vec![TensorType::f32([])]),
            _ => Err(OpError("takes two f32 tensors of one shape".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![Some(call.inputs[1]), None])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (y, r): (&[f32], &[f32]) = (call.input(0), call.input(1));
        call.output::<f32>(0)[0] = y.iter().zip(r).map(|(&y, &r)| f64::from(y) * f64::from(r)).sum::<f64>() as f32;
    }
}

/// Adds the backward pass of `y` for the upstream gradient in a new input `upstream`, and makes the gradients of `wrt` outputs
/// `grad0`, `grad1`, …
///
/// # Errors
/// If the graph refuses.
///
/// # Panics
/// If `y` does not depend on one of `wrt`.
pub fn add_gradients(graph: &mut Graph, y: Value, wrt: &[Value]) -> Result<(), GraphError> {
    let upstream = graph.input("upstream", graph.ty(y).clone())?;
    let loss = graph.apply1(Op::Custom(std::sync::Arc::new(Project)), &[y, upstream])?;
    for (index, grad) in graph.grad(loss, wrt)?.into_iter().enumerate() {
        graph.output(&format!("grad{index}"), grad.expect("the output depends on every input asked for"))?;
    }
    Ok(())
}

/// Largest difference |a − b| / (1 + |b|) between two slices.
///
/// # Panics
/// If the lengths differ or a value is NaN.
pub fn largest_difference(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    let mut largest = 0.0;
    for (&a, &b) in a.iter().zip(b) {
        let difference = (f64::from(a) - b).abs() / (1.0 + b.abs());
        assert!(!difference.is_nan(), "{a} against {b}");
        largest = f64::max(largest, difference);
    }
    largest
}
