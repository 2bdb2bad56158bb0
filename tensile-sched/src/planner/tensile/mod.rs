//! The default planner.

use super::facts::Facts;
use super::packed::packed;
use super::{Infeasible, Planned, Planner, complete};
use crate::baseline::no_eviction;
use crate::floor::{Floor, floor};
use crate::id::Bytes;
use crate::limits::{Limits, Mode};
use crate::trace::Trace;

/// Switches of [`Tensile`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensileOptions {}

/// The default planner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensile {
    /// Its switches.
    pub options: TensileOptions,
}

impl Planner for Tensile {
    fn name(&self) -> &'static str {
        "tensile"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let floor = floor(trace, limits)?;
        if limits.device < floor.bytes {
            return Err(floor.infeasible(trace, limits));
        }
        let unlimited = no_eviction(trace, limits)?;
        if unlimited.layout.arena <= limits.device || limits.mode == Mode::Recompute {
            return complete(trace, limits, unlimited);
        }
        complete(trace, limits, packed(&Facts::new(trace, limits))?)
    }
}

/// The floor of [`Mode::Recompute`].
pub(crate) fn recompute_floor(trace: &Trace, limits: &Limits) -> Result<Floor, Infeasible> {
    let placed = no_eviction(trace, &Limits { device: Bytes::MAX, ..limits.clone() })?;
    let peak = crate::liveness::Liveness::new(trace).peak(trace, limits);
    Ok(Floor { bytes: placed.layout.arena, op: peak.op })
}
