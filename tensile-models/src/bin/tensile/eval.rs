//! `tensile eval`: how well saved weights tell labels.

use serde::Serialize;
use tensile_core::device::host::count::{self, Tag};
use tensile_models::data;
use tensile_sched::Bytes;

use crate::Failure;
use crate::args::EvalArgs;
use crate::setup;

#[derive(Serialize)]
struct Answer {
    model: String,
    labels: usize,
    loss: f64,
    accuracy: f64,
    /// Device bytes, as the counting allocator saw them.
    peak_bytes: u64,
}

pub(crate) fn run(args: &EvalArgs) -> Result<(), Failure> {
    let args = &args.trained;
    let (mut predictor, network) = setup::trained(args)?;
    let name = args.data.as_deref().unwrap_or(data::default_for(&*network));
    let data = data::open(name, &*network, args.seed)?;
    let evaluation = predictor.evaluate(&*data.test)?;
    let answer = Answer {
        model: args.model.clone(),
        labels: evaluation.labels,
        loss: evaluation.loss,
        accuracy: evaluation.accuracy,
        peak_bytes: count::peak(Tag::Device),
    };
    if args.json {
        out!("{}", serde_json::to_string(&answer).expect("plain data becomes JSON"));
    } else {
        out!(
            "{}: loss {:.4}, accuracy {:.2} % of {} labels of {name}; peak on the device (counted) {}",
            answer.model,
            answer.loss,
            answer.accuracy * 100.0,
            answer.labels,
            Bytes(answer.peak_bytes)
        );
    }
    Ok(())
}
