//! Every op: against the reference, and against itself.

use std::sync::Arc;

use tensile_sched::{Bytes, NoEviction, Planner};

use super::{Case, Closeness, Places, args, cases, launch, read, write};
use crate::device::{Device, DeviceError, Region};
use crate::exec::{Compiled, Executor, ExecutorOptions, Step, lower};
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::nn::{init_part, init_value};
use crate::op::{Op, OpDef, OpError};
use crate::tensor::{DType, TensorType};
use crate::testing;

/// Results and updated persistent tensors of every case agree with those of the reference interpreter.
///
/// # Panics
/// If they do not.
pub fn agree_with_the_reference<D: Device>(device: &Arc<D>, closeness: Closeness) {
    for case in cases() {
        let graph = case.graph();
        let inputs: Vec<(&str, Vec<u8>)> =
            graph.inputs().map(|(name, value)| (name, Case::input(name, graph.ty(value)))).collect();
        let expected = testing::run(&graph, &inputs, &[], 1);

        let step = Arc::new(lower(&graph, &**device).unwrap_or_else(|error| panic!("{}: {error}", case.name)));
        let limits = device.info().limits(Bytes::MAX);
        let planned = NoEviction.plan(&step.trace, &limits).expect("there is no limit");
        let compiled = Compiled::new(Arc::clone(&step), planned, limits).expect("planners make right programs");
        let init =
            |persistent: &crate::Persistent, first: usize, bytes: &mut [u8]| init_part(persistent, 0, first, bytes);
        let mut executor = Executor::new(Arc::clone(device), &compiled, ExecutorOptions::default(), init)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let result = executor
            .step(&compiled, |input, bytes| bytes.copy_from_slice(&Case::input(&input.name, &input.ty)))
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        for output in &result.outputs {
            compare(&case, closeness, (&output.name, &output.ty), &output.bytes, &expected.outputs[&output.name]);
        }
        for value in executor.state().expect("nothing failed") {
            let (name, ty) = (&value.persistent.name, &value.persistent.ty);
            compare(&case, closeness, (name, ty), &value.bytes, &expected.persistents[name]);
        }
    }
}

fn compare(case: &Case, closeness: Closeness, (name, ty): (&str, &TensorType), got: &[u8], right: &[u8]) {
    if closeness == Closeness::Exact || ty.dtype != DType::F32 {
        assert!(got == right, "{}: '{name}' {ty} has other bits than the reference", case.name);
        return;
    }
    let right: Vec<f64> = testing::floats(right).into_iter().map(f64::from).collect();
    let difference = testing::largest_difference(&testing::floats(got), &right);
    assert!(
        difference <= case.tolerance,
        "{}: '{name}' {ty} differs by {difference:.1e}, more than {:.1e}",
        case.name,
        case.tolerance
    );
}

/// Each op of every case, launched alone: twice at different addresses, with NaN patterns in outputs and scratch before, and in place where the
/// trace allows it. The bits are the same each time, inputs stay as they are, and bytes beside the arguments do too.
///
/// # Panics
/// If not.
pub fn repeat_their_bits<D: Device>(device: &Arc<D>) {
    for case in cases() {
        let step = lower(&case.graph(), &**device).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        repeat_step(&**device, &case, &step);
    }
}

/// The regions of a step's tensors, and spare ones for one op at a time.
struct Bench<'a, D: Device> {
    device: &'a D,
    arena: D::Arena,
    stream: D::Stream,
    home: Vec<Region>,
    spare: Vec<Region>,
    scratch: [Region; 2],
}

fn repeat_step<D: Device>(device: &D, case: &Case, step: &Step) {
    let tensors = step.trace.tensors();
    let mut places = Places::new(device);
    let mut place_all = || -> Vec<Region> {
        // A gap behind every tensor shows writes past its end.
        tensors.iter().map(|tensor| (places.next(tensor.bytes.0), places.next(1)).0).collect()
    };
    let (home, spare) = (place_all(), place_all());
    let most = step.trace.ops().iter().map(|op| op.workspace.0).max().unwrap_or(0);
    let scratch = [places.next(most), places.next(most)];
    let arena = device.alloc_arena(places.end).expect("a small arena");
    let stream = device.stream(tensile_sched::Lane::Compute).expect("a stream");
    write(device, &arena, Region { offset: 0, bytes: places.end }, &vec![0xff; places.end as usize]);
    for (region, persistent) in home.iter().zip(&step.persistents) {
        write(device, &arena, *region, &init_value(persistent, 0));
    }
    for input in &step.inputs {
        write(device, &arena, home[input.tensor.index()], &Case::input(&input.name, &input.ty));
    }
    let bench = Bench { device, arena, stream, home, spare, scratch };
    for index in 0..step.calls.len() {
        bench.op(case, step, index);
    }
    for region in bench.home.iter().chain(&bench.spare) {
        let end = region.end();
        let unit = device.info().alignment;
        let gap = Region { offset: end, bytes: end.next_multiple_of(unit) + unit - end };
        let intact = read(device, &bench.arena, gap).iter().all(|&byte| byte == 0xff);
        assert!(intact, "{}: bytes behind a tensor were written", case.name);
    }
}

impl<D: Device> Bench<'_, D> {
    fn op(&self, case: &Case, step: &Step, index: usize) {
        let (call, op) = (&step.calls[index], &step.trace.ops()[index]);
        let name = format!("{}: {}", case.name, call.op.def().name());
        let types = |list: &[crate::exec::CallArg]| list.iter().map(|arg| arg.ty.clone()).collect::<Vec<_>>();
        let (input_types, output_types) = (types(&call.inputs), types(&call.outputs));
        let at = |regions: &[Region], list: &[crate::exec::CallArg]| {
            list.iter().map(|arg| regions[arg.tensor.index()]).collect::<Vec<_>>()
        };
        let (inputs, outputs) = (at(&self.home, &call.inputs), at(&self.home, &call.outputs));
        let workspace = |which: usize| Region { bytes: op.workspace.0, ..self.scratch[which] };
        let run = |inputs: &[Region], outputs: &[Region], which: usize| {
            let pair = (&args(inputs, &input_types)[..], &args(outputs, &output_types)[..]);
            launch(self.device, &self.stream, &self.arena, &call.op, pair, workspace(which));
        };
        let all = |regions: &[Region]| -> Vec<Vec<u8>> {
            regions.iter().map(|&region| read(self.device, &self.arena, region)).collect()
        };
        let before = all(&inputs);
        if !op.replayable {
            // An update: from the same start it comes to the same end.
            run(&inputs, &outputs, 0);
            let after = all(&inputs);
            let spare = at(&self.spare, &call.inputs);
            spare.iter().zip(&before).for_each(|(&region, bytes)| write(self.device, &self.arena, region, bytes));
            run(&spare, &outputs, 1);
            assert!(all(&spare) == after, "{name}: an update at other addresses gives other bits");
            return;
        }
        run(&inputs, &outputs, 0);
        let right = all(&outputs);
        let spare = at(&self.spare, &call.outputs);
        run(&inputs, &spare, 1);
        assert!(all(&spare) == right, "{name}: a rerun at other addresses gives other bits");
        assert!(all(&inputs) == before, "{name}: an input was changed");
        for pair in &op.in_place {
            let input = call.inputs.iter().position(|arg| arg.tensor == pair.input).expect("a pair names an input");
            let output = call.outputs.iter().position(|arg| arg.tensor == pair.output).expect("a pair names an output");
            let (mut input_regions, mut output_regions) = (inputs.clone(), spare.clone());
            input_regions[input] = spare[output];
            output_regions[output] = spare[output];
            write(self.device, &self.arena, spare[output], &before[input]);
            run(&input_regions, &output_regions, 0);
            assert!(all(&output_regions) == right, "{name}: other bits in place");
        }
    }
}

/// An op that no device knows: doubles, or panics on a negative first element.
#[derive(Clone, Debug)]
struct Foreign;

impl OpDef for Foreign {
    fn name(&self) -> &'static str {
        "foreign"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        Ok(inputs.to_vec())
    }

    fn grad(&self, _call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![None])
    }

    fn host_kernel(&self, call: &crate::device::host::HostCall<'_>) {
        let x: &[f32] = call.input(0);
        assert!(x[0] >= 0.0, "negative");
        for (y, x) in call.output::<f32>(0).iter_mut().zip(x) {
            *y = 2.0 * x;
        }
    }
}

/// An op from outside runs (on the host device), and its panic is a typed error after which the stream works; or it is refused by its name.
///
/// # Panics
/// If neither.
pub fn foreign_ops<D: Device>(device: &Arc<D>) {
    let op = Op::Custom(Arc::new(Foreign));
    let types = [TensorType::f32([3])];
    let mut graph = Graph::new();
    let x = graph.input("x", types[0].clone()).expect("a new input");
    let y = graph.apply1(op.clone(), &[x]).expect("takes anything");
    graph.output("y", y).expect("a new output");
    match device.workspace(&op, &types, &types) {
        Err(DeviceError::Unsupported { op: name, .. }) => {
            assert_eq!(name, "foreign");
            assert!(matches!(lower(&graph, &**device), Err(GraphError::Device { .. })));
        }
        Err(other) => panic!("an unknown op is refused as {other}"),
        Ok(workspace) => {
            assert_eq!(workspace, 0);
            let mut places = Places::new(&**device);
            let (x, y) = (places.next(12), places.next(12));
            let arena = device.alloc_arena(places.end).expect("a small arena");
            let stream = device.stream(tensile_sched::Lane::Compute).expect("a stream");
            let other = device.stream(tensile_sched::Lane::Out).expect("a stream");
            let event = device.event().expect("an event");
            let (inputs, outputs) = (args(&[x], &types), args(&[y], &types));
            let call = crate::OpCall { op: &op, inputs: &inputs, outputs: &outputs, workspace: Region::default() };
            write(&**device, &arena, x, &testing::float_bytes(&[-1.0, 2.0, 3.0]));
            device.launch(&stream, &arena, &call).expect("enqueued");
            device.record(&stream, &event).expect("recorded");
            device.wait(&other, &event).expect("enqueued");
            let failed = |result: Result<(), DeviceError>| match result {
                Err(DeviceError::Kernel { op, .. }) => assert_eq!(op, "foreign"),
                other => panic!("a panicking kernel gives {other:?}"),
            };
            failed(device.wait_event(&event));
            failed(device.synchronize(&stream));
            failed(device.synchronize(&other));
            // Both streams work again.
            device.synchronize(&other).expect("the failure has been told");
            write(&**device, &arena, x, &testing::float_bytes(&[1.0, 2.0, 3.0]));
            launch(&**device, &stream, &arena, &op, (&inputs, &outputs), Region::default());
            assert_eq!(testing::floats(&read(&**device, &arena, y)), [2.0, 4.0, 6.0]);
        }
    }
}
