//! `tensile eval`: how well saved weights tell labels.

use std::sync::Arc;

use serde::Serialize;
use tensile_models::backend::{AdapterReport, Backend, Visitor};
use tensile_models::data;
use tensile_sched::Bytes;

use crate::Failure;
use crate::args::{EvalArgs, TrainedArgs};
use crate::setup;

#[derive(Serialize)]
struct Answer {
    model: String,
    labels: usize,
    loss: f64,
    accuracy: f64,
    /// Device bytes, as an independent counter saw them.
    peak_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<AdapterReport>,
}

pub(crate) fn run(args: &EvalArgs) -> Result<(), Failure> {
    setup::on_device(&args.trained.step.device, &args.trained.policy, false, Eval(&args.trained))
}

struct Eval<'a>(&'a TrainedArgs);

impl Visitor for Eval<'_> {
    type Output = Result<(), Failure>;

    fn visit<D: Backend>(self, device: Arc<D>) -> Result<(), Failure> {
        eval(self.0, device)
    }
}

fn eval<D: Backend>(args: &TrainedArgs, device: Arc<D>) -> Result<(), Failure> {
    let before = device.begin_count();
    let (mut predictor, network) = setup::trained(args, Arc::clone(&device))?;
    let name = args.data.as_deref().unwrap_or(data::default_for(&*network));
    let data = data::open(name, &*network, args.seed)?;
    let evaluation = predictor.evaluate(&*data.test)?;
    let answer = Answer {
        model: args.model.clone(),
        labels: evaluation.labels,
        loss: evaluation.loss,
        accuracy: evaluation.accuracy,
        peak_bytes: device.counted_bytes(before).map(|bytes| bytes.0),
        adapter: device.adapter(),
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
            answer.peak_bytes.map_or("not counted".to_owned(), |bytes| Bytes(bytes).to_string())
        );
    }
    Ok(())
}
