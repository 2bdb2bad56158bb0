//! Memory scheduling of training steps.
//!
//! A [`Trace`] says what one training step reads, writes and updates. A [`Planner`] turns it into a program: what the device executes, copies,
//! releases and recomputes, with a byte address for everything, so that the step stays within a hard memory budget. This crate plans, proves and predicts; it
//! does no I/O, reads no clock and knows no device.
//!
//! # Example
//! A chain of four layers and its backward pass, under the smallest budget in which it runs:
//! ```
//! use tensile_sched::{Bytes, Limits, NoEviction, Op, Planner, Role, Tensile, Tensor, TensorId, Trace, floor, text};
//!
//! let tensor = |name: String, role| Tensor { name, bytes: Bytes(1 << 20), role, keep: false };
//! let op = |label: String, reads: Vec<u32>, write: u32| Op {
//!     class: label.clone(),
//!     label,
//!     reads: reads.into_iter().map(TensorId).collect(),
//!     writes: vec![TensorId(write)],
//!     updates: vec![],
//!     workspace: Bytes::ZERO,
//!     latency: tensile_sched::Nanos(100_000),
//!     replayable: true,
//!     in_place: vec![],
//! };
//! // x, then activations 1 to 4, then gradients 5 to 8.
//! let mut tensors = vec![tensor("x".into(), Role::Input)];
//! tensors.extend((1..=4).map(|layer| tensor(format!("a{layer}"), Role::Activation)));
//! tensors.extend((1..=4).map(|layer| tensor(format!("g{layer}"), Role::Gradient)));
//! tensors[8].keep = true;
//! let mut ops: Vec<Op> = (1..=4).map(|layer| op(format!("forward{layer}"), vec![layer - 1], layer)).collect();
//! ops.push(op("loss".into(), vec![4], 5));
//! ops.extend((1..4).map(|step| op(format!("backward{}", 4 - step), vec![4 + step, 4 - step], 5 + step)));
//! let trace = Trace::new(tensors, ops)?;
//!
//! let unlimited = NoEviction.plan(&trace, &Limits::unlimited())?;
//! let budget = floor(&trace, &Limits::unlimited())?.bytes;
//! assert_eq!((unlimited.report.arena, budget), (Bytes(5 << 20), Bytes(3 << 20)));
//!
//! let planned = Tensile::default().plan(&trace, &Limits::with_budget(budget))?;
//! assert!(planned.report.arena <= budget);
//! assert!(planned.report.evictions + planned.report.reruns > 0);
//! assert!(planned.simulation.step_time >= unlimited.simulation.step_time);
//! println!("{}", text::synced(&trace, &planned.synced));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Overview
//! | step | module | result |
//! |---|---|---|
//! | describe a step, or read it from a file | [`trace`], `file` | [`Trace`] |
//! | what must be there when | [`liveness`], [`floor`](mod@floor) | access sequences, the smallest budget |
//! | decide | [`planner`], [`baseline`] | [`Program`] |
//! | give addresses | [`layout`](mod@layout) | [`Placed`] |
//! | add waits between lanes | [`sync`](mod@sync) | [`Synced`] |
//! | prove | [`check`](mod@check), [`verify`](mod@verify) | [`CheckReport`] |
//! | predict | [`simulate`](mod@simulate) | [`Simulation`] |
//! | divide a device among jobs | [`share`] | budgets |
//! | show | [`text`], [`timeline`] | text, drawings, reasons, lanes over time |
//!
//! [`text::residency`] draws where tensors are, instruction by instruction. Here a weight is given up while it is not needed, for its host copy is valid, and
//! an activation is dropped and made again:
//! ```text
//!              1
//!    012345678901234     kinds    <  swap in    k  run    K  rerun    >  swap out    -  release
//!    <<k-k-<K-k--->-     tensors  =  on the device        .  on the host only        (blank)  nowhere
//! w .<=r...<r=r.....              r, w  a kernel reads, writes it
//! x ..<r====r.......              <  it comes to the device   >  it goes to the host
//! a    w=r  w=r=
//! b      w====r==
//! y           w===>.
//! ```
//!
//! # Features
//! - `serde`: trace files (JSON, plain or gzip).
//! - `proptest`: strategies for random traces, for property tests of planners.

#![forbid(unsafe_code)]

pub mod baseline;
mod borders;
pub mod check;
#[cfg(feature = "serde")]
pub mod file;
pub mod floor;
pub mod id;
pub mod layout;
pub mod limits;
pub mod liveness;
pub mod optimal;
pub mod planner;
pub mod program;
pub mod share;
pub mod simulate;
#[cfg(feature = "proptest")]
pub mod strategy;
pub mod sync;
pub mod text;
pub mod timeline;
pub mod trace;
pub mod verify;

#[cfg(test)]
mod testing;

pub use baseline::{
    AutoSwap, Capuchin, ChenSqrt, Dtr, NoEviction, Offload, Paper, PaperOptions, Retain, Score, SuperNeurons, Vdnn,
    max_swap_ratios,
};
pub use check::{CheckReport, Violation, check};
#[cfg(feature = "serde")]
pub use file::{FileError, read_trace, write_trace};
pub use floor::{Floor, floor};
pub use id::{Bytes, InstrId, Nanos, OpId, TensorId};
pub use layout::{LayoutError, layout, spread};
pub use limits::{Duplex, Limits, Link, Mode};
pub use liveness::Liveness;
pub use optimal::{Optimal, OptimalError, optimal};
pub use planner::{Effort, FrontierPoint, Infeasible, Planned, Planner, Tensile, frontier, least_memory};
pub use program::{BoundaryTensor, Home, Instr, Lane, Layout, Placed, Placement, Program, Slots, Synced, Wait};
pub use share::{Claim, Curve, CurveError, Division, ShareError, divide, weighted_slowdown};
pub use simulate::{Simulation, Span, Stall, simulate, simulate_together};
pub use sync::sync;
pub use trace::{InPlace, Op, Role, Tensor, Trace, TraceError};
pub use verify::{Race, verify};
