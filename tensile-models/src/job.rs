//! A job: a model's training and evaluation steps for one batch size, ready to be planned.

use std::sync::Arc;

use tensile_core::exec::{Step, lower};
use tensile_core::graph::{Graph, GraphError};
use tensile_core::optim::{self, Optimizer};
use tensile_core::tensor::TensorType;
use tensile_core::{Device, nn};

use crate::zoo::Model;

/// Input with the pixels, `f32[batch, channels, height, width]`.
pub const IMAGES: &str = "images";
/// Input with the labels, `i32[batch]`.
pub const LABELS: &str = "labels";
/// Output of the training step: the mean loss of the batch, `f32[]`.
pub const LOSS: &str = "loss";
/// Output of the evaluation step: how many samples of the batch were told right, `i32[]`.
pub const CORRECT: &str = "correct";

/// A model's steps for one batch size on one device.
#[derive(Clone, Debug)]
pub struct Job {
    /// Samples in a batch.
    pub batch: usize,
    /// Channels, height and width of a sample.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// What updates the parameters.
    pub optimizer: Optimizer,
    /// Forward, backward, updates.
    pub train: Arc<Step>,
    /// Forward only, as in evaluation: running statistics, no dropout.
    pub eval: Arc<Step>,
}

impl Job {
    /// Builds both steps of a model for a batch of `batch` images of `size`×`size` (of the model's own size if 0).
    ///
    /// # Errors
    /// [`GraphError`] if the model does not take images of this size, or the device lacks a kernel.
    pub fn new<D: Device>(
        model: &Model,
        batch: usize,
        size: usize,
        optimizer: Optimizer,
        device: &D,
    ) -> Result<Self, GraphError> {
        Self::with_outputs(model, batch, size, optimizer, device, |_, _| Ok(()))
    }

    /// As [`new`](Self::new), with more outputs in the training step: `more` gets its graph and each parameter with its gradient.
    ///
    /// # Errors
    /// As [`new`](Self::new), and those of `more`.
    pub fn with_outputs<D: Device>(
        model: &Model,
        batch: usize,
        size: usize,
        optimizer: Optimizer,
        device: &D,
        more: impl FnOnce(&mut Graph, &[(tensile_core::Value, tensile_core::Value)]) -> Result<(), GraphError>,
    ) -> Result<Self, GraphError> {
        let shape = model.shape_for(size);
        let images = TensorType::f32([batch, shape[0], shape[1], shape[2]]);
        let labels = TensorType::i32([batch]);

        let mut graph = Graph::new();
        let (x, y) = (graph.input(IMAGES, images.clone())?, graph.input(LABELS, labels.clone())?);
        let logits = model.forward(&mut graph, x, nn::Mode::Train)?;
        let loss = graph.softmax_cross_entropy(logits, y)?;
        graph.output(LOSS, loss)?;
        let updates = optim::train(&mut graph, loss, &optimizer)?;
        more(&mut graph, &updates)?;

        let mut eval = graph.sibling();
        let (x, y) = (eval.input(IMAGES, images)?, eval.input(LABELS, labels)?);
        let logits = model.forward(&mut eval, x, nn::Mode::Eval)?;
        let correct = eval.count_correct(logits, y)?;
        eval.output(CORRECT, correct)?;

        Ok(Self {
            batch,
            shape,
            classes: model.classes,
            optimizer,
            train: Arc::new(lower(&graph, device)?),
            eval: Arc::new(lower(&eval, device)?),
        })
    }
}
