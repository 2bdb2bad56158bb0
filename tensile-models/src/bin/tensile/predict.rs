//! `tensile predict`: labels of samples, or the continuation of a text.

use std::sync::Arc;

use serde::Serialize;
use tensile_core::Device;
use tensile_models::backend::{Backend, Visitor};
use tensile_models::data::{self, Batch, Draw, SplitMix};
use tensile_models::trainer::Predictor;
use tensile_models::zoo::{IGNORED, Network, Task};

use crate::Failure;
use crate::args::PredictArgs;
use crate::setup;

/// What `--json` prints for each label.
#[derive(Serialize)]
struct Told {
    sample: usize,
    /// Which label of the sample, where it has more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<usize>,
    label: i32,
    /// The likeliest first.
    classes: Vec<Likely>,
}

#[derive(Serialize)]
struct Likely {
    class: usize,
    probability: f32,
}

pub(crate) fn run(args: &PredictArgs) -> Result<(), Failure> {
    if !(args.temperature >= 0.0 && args.temperature.is_finite()) {
        let message = format!("--temperature {} is none; it must be 0 or above", args.temperature);
        return Err(Failure::Usage(message));
    }
    setup::on_device(&args.trained.step.device, &args.trained.policy, false, Predict(args))
}

struct Predict<'a>(&'a PredictArgs);

impl Visitor for Predict<'_> {
    type Output = Result<(), Failure>;

    fn visit<D: Backend>(self, device: Arc<D>) -> Result<(), Failure> {
        let (mut predictor, network) = setup::trained(&self.0.trained, device)?;
        match &self.0.prompt {
            Some(prompt) => continue_text(self.0, prompt, &mut predictor, &*network),
            None => tell_labels(self.0, &mut predictor, &*network),
        }
    }
}

fn tell_labels<D: Device>(
    args: &PredictArgs,
    predictor: &mut Predictor<D>,
    network: &dyn Network,
) -> Result<(), Failure> {
    let name = args.trained.data.as_deref().unwrap_or(data::default_for(network));
    let data = data::open(name, network, args.trained.seed)?.test;
    let n_samples = if args.samples == 0 { data.len() } else { args.samples.min(data.len()) };
    let per_sample = network.task().labels().shape.numel();
    let mut batch = Batch::new(&network.task(), predictor.batch());
    for first in (0..n_samples).step_by(predictor.batch()) {
        let last = (first + predictor.batch()).min(n_samples);
        for index in first..last {
            data.sample(index, Draw::evaluation(index), batch.sample(index - first))?;
        }
        batch.clear_from(last - first);
        let logits = predictor.logits(&batch)?;
        for (row, (logits, &label)) in logits.chunks_exact(network.classes()).zip(batch.labels()).enumerate() {
            let sample = first + row / per_sample;
            if sample < last && label != IGNORED {
                let place = (per_sample > 1).then_some(row % per_sample);
                tell(args, &Told { sample, place, label, classes: likeliest(logits, usize::from(args.top)) });
            }
        }
    }
    Ok(())
}

fn tell(args: &PredictArgs, told: &Told) {
    if args.trained.json {
        out!("{}", serde_json::to_string(told).expect("plain data becomes JSON"));
        return;
    }
    let place = told.place.map_or(String::new(), |place| format!(", place {place}"));
    let classes: Vec<String> =
        told.classes.iter().map(|likely| format!("{} ({:.1} %)", likely.class, likely.probability * 100.0)).collect();
    let verdict = if told.classes[0].class as i32 == told.label { "right" } else { "wrong" };
    out!("sample {}{place}: {}; labelled {}: {verdict}", told.sample, classes.join(", "), told.label);
}

/// Classes with the largest logits, by probability.
fn likeliest(logits: &[f32], top: usize) -> Vec<Likely> {
    let probabilities = softmax(logits, 1.0);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.into_iter().take(top).map(|class| Likely { class, probability: probabilities[class] }).collect()
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Byte after byte: the model sees as much of the text as its context holds.
fn continue_text<D: Device>(
    args: &PredictArgs,
    prompt: &str,
    predictor: &mut Predictor<D>,
    network: &dyn Network,
) -> Result<(), Failure> {
    let Task::NextToken { context } = network.task() else {
        let message =
            format!("--prompt is for models that tell next tokens; {} is for {}", args.trained.model, network.task());
        return Err(Failure::Usage(message));
    };
    if network.classes() != 256 {
        let message = format!("--prompt is for models of bytes (256 classes); this one has {}", network.classes());
        return Err(Failure::Usage(message));
    }
    if prompt.is_empty() {
        return Err(Failure::Usage("--prompt is empty; give at least one byte to continue".to_owned()));
    }
    let mut text = prompt.as_bytes().to_vec();
    let mut random = SplitMix::new(args.trained.seed, 0);
    let mut batch = Batch::new(&network.task(), predictor.batch());
    for _ in 0..args.length {
        let seen = &text[text.len().saturating_sub(context)..];
        let mut sample = batch.sample(0);
        let tokens = sample.i32(0);
        tokens.fill(0);
        tokens.iter_mut().zip(seen).for_each(|(token, &byte)| *token = i32::from(byte));
        let logits = predictor.logits(&batch)?;
        let logits = &logits[(seen.len() - 1) * 256..][..256];
        let byte = if args.temperature == 0.0 {
            likeliest(logits, 1)[0].class
        } else {
            // A number in [0, 1) falls into the part of one class.
            let mut left = (random.next_f32() + 1.0) / 2.0;
            let probabilities = softmax(logits, args.temperature);
            let drawn = probabilities.iter().position(|probability| {
                left -= probability;
                left < 0.0
            });
            drawn.unwrap_or(255)
        };
        text.push(u8::try_from(byte).expect("there are 256 classes"));
    }
    if args.trained.json {
        out!("{}", serde_json::json!({ "text": String::from_utf8_lossy(&text) }));
    } else {
        out!("{}", String::from_utf8_lossy(&text));
    }
    Ok(())
}
