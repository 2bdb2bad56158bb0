//! Files of learned latencies: safetensors, with all that is not a tensor as text beside them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use tensile_sched::Role;

use super::features::N_FEATURES;
use super::learned::{LAYERS, layers, sizes};
use super::{Accuracy, LatencyError, Learned, Roofline};
use crate::checkpoint::{self, CheckpointError, Contents};
use crate::exec::PersistentValue;
use crate::graph::{Init, Persistent};
use crate::tensor::TensorType;

/// Version of the format. It goes up with every change of the features' meaning, too.
const VERSION: u32 = 1;
/// Tells such files from other safetensors files.
const FORMAT: &str = "tensile latencies";
/// Largest width of a hidden layer that is read.
const MOST_HIDDEN: usize = 4096;

const SCALES: &str = "scales";
const LIMITS: &str = "limits";

impl Learned {
    /// Writes a file that [`load`](Self::load) reads. What stood there before stands there until the new file is whole.
    ///
    /// # Errors
    /// [`LatencyError::File`].
    pub fn save(&self, path: &Path) -> Result<(), LatencyError> {
        let hidden = self.layers[0].bias.len();
        let values = [self.scales.as_flattened(), &self.limits]
            .into_iter()
            .chain(self.layers.iter().flat_map(|layer| [&layer.weight[..], &layer.bias]));
        let state: Vec<PersistentValue> = tensors(self.width(), hidden)
            .into_iter()
            .zip(values)
            .map(|(persistent, values)| PersistentValue { persistent, bytes: bytemuck::cast_slice(values).to_vec() })
            .collect();
        let mut metadata = BTreeMap::new();
        let mut set = |name: &str, value: &dyn Display| drop(metadata.insert(name.to_owned(), value.to_string()));
        set("format", &FORMAT);
        set("version", &VERSION);
        set("device", &self.device);
        set("classes", &self.classes.join("\n"));
        set("hidden", &hidden);
        set("flops_per_s", &self.roofline.flops_per_s);
        set("bytes_per_s", &self.roofline.bytes_per_s);
        set("launch_s", &self.roofline.launch_s);
        if let Some(Accuracy { count, median, p90 }) = self.accuracy {
            set("held_out", &count);
            set("median_error", &median);
            set("p90_error", &p90);
        }
        checkpoint::save(path, &state, Contents::Model, &metadata).map_err(LatencyError::File)
    }

    /// Reads a file of latencies of the device of that name.
    ///
    /// # Errors
    /// [`LatencyError::File`] if it cannot be read; [`LatencyError::Contents`], [`LatencyError::Version`], [`LatencyError::Device`].
    pub fn load(path: &Path, device: &str) -> Result<Self, LatencyError> {
        let contents = |detail: String| LatencyError::Contents { path: path.to_owned(), detail };
        let file = |error: CheckpointError| match error {
            CheckpointError::Format { detail, .. } => contents(detail),
            CheckpointError::Mismatch { mismatch, .. } => contents(mismatch.to_string()),
            error => LatencyError::File(error),
        };
        let metadata = checkpoint::load_metadata(path).map_err(file)?;
        let text = |name: &str| {
            let value = metadata.get(name).map(String::as_str);
            value.ok_or_else(|| contents(format!("it does not say '{name}'")))
        };
        if metadata.get("format").map(String::as_str) != Some(FORMAT) {
            return Err(contents("it is something else".to_owned()));
        }
        let version = text("version")?;
        if version != VERSION.to_string() {
            return Err(LatencyError::Version { path: path.to_owned(), found: version.to_owned(), expected: VERSION });
        }
        let found = text("device")?;
        if found != device {
            let (found, wanted) = (found.to_owned(), device.to_owned());
            return Err(LatencyError::Device { path: path.to_owned(), found, wanted });
        }
        let rate = |name: &str| match number::<f64>(text(name)?) {
            Some(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
            _ => Err(contents(format!("its '{name}' is no number above zero"))),
        };
        let error = |name: &str| match number::<f64>(text(name)?) {
            Some(error) if error >= 0.0 => Ok(error),
            _ => Err(contents(format!("its '{name}' is no error"))),
        };
        let roofline = Roofline {
            flops_per_s: rate("flops_per_s")?,
            bytes_per_s: rate("bytes_per_s")?,
            launch_s: rate("launch_s")?,
        };
        let accuracy = match metadata.get("held_out").and_then(|count| number(count)) {
            Some(count) => Some(Accuracy { count, median: error("median_error")?, p90: error("p90_error")? }),
            None => None,
        };
        let classes: Vec<String> = text("classes")?.split('\n').map(str::to_owned).collect();
        if !classes.is_sorted() {
            return Err(contents("its classes are not in order".to_owned()));
        }
        let hidden = number(text("hidden")?).filter(|hidden| (1..=MOST_HIDDEN).contains(hidden));
        let hidden = hidden.ok_or_else(|| contents("its layers have no width".to_owned()))?;
        let tensors = tensors(N_FEATURES + classes.len(), hidden);
        let state = checkpoint::load(path, &tensors, Contents::Model).map_err(file)?;
        let values = |index: usize| -> Vec<f32> {
            let words = state[index].bytes.chunks_exact(4);
            words.map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
        };
        if (0..state.len()).any(|index| values(index).iter().any(|value| !value.is_finite())) {
            return Err(contents("some of its numbers are not finite".to_owned()));
        }
        let mut scales = [[0.0; N_FEATURES]; 4];
        scales.as_flattened_mut().copy_from_slice(&values(0));
        let limits = [values(1)[0], values(1)[1]];
        let [_, deviation, least, most] = &scales;
        let ordered = least.iter().zip(most).all(|(least, most)| least <= most) && limits[0] <= limits[1];
        if !ordered || deviation.iter().any(|&deviation| deviation <= 0.0) {
            return Err(contents("its ranges are empty".to_owned()));
        }
        let device = device.to_owned();
        Ok(Self { device, roofline, classes, scales, limits, layers: layers(&state), accuracy })
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// What is in a file: scales, limits, then weight and bias of each layer.
fn tensors(width: usize, hidden: usize) -> Vec<Persistent> {
    let tensor =
        |name: String, ty: TensorType| Persistent { name, role: Role::Parameter, ty, init: Init::Constant(0.0) };
    let mut tensors = vec![
        tensor(SCALES.to_owned(), TensorType::f32([4, N_FEATURES])),
        tensor(LIMITS.to_owned(), TensorType::f32([2])),
    ];
    for (layer, [inputs, outputs]) in LAYERS.into_iter().zip(sizes(width, hidden)) {
        tensors.push(tensor(format!("{layer}.weight"), TensorType::f32([outputs, inputs])));
        tensors.push(tensor(format!("{layer}.bias"), TensorType::f32([outputs])));
    }
    tensors
}
