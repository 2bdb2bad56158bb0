//! From what is asked for to a reader.

use std::io::ErrorKind;
use std::path::Path;

use super::augment::{Augment, Crop, augmented};
use super::file::unreadable;
use super::{CsvImages, DataError, Splits, Synthetic, cifar, folder, idx, karate, text};
use crate::zoo::{Network, Task};

/// Data that has a name and needs no file.
const NAMES: [&str; 3] = ["digits", "karate", "synthetic"];

/// How data is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How images are changed in training; unless given, CIFAR-10's are mirrored and moved by up to four pixels, of those in folders any part is seen, mirrored or not,
    /// and others stay as they are.
    pub augment: Option<Augment>,
}

/// The data for a network, unless something else is asked for: what comes with the program and fits, or else what is made for it.
pub fn default_for(network: &dyn Network) -> &'static str {
    match network.task() {
        Task::Images { shape: [1, 8, 8] } => "digits",
        task if task == karate::Karate::splits().train.task() => "karate",
        _ => "synthetic",
    }
}

/// The data that `--data` names, read in the usual way: [`open_with`] default options.
///
/// # Errors
/// [`DataError`] if a file cannot be read or does not fit the network.
pub fn open(name: &str, network: &dyn Network, seed: u64) -> Result<Splits, DataError> {
    open_with(name, network, seed, &Options::default())
}

/// The data that `--data` names: `digits` or `karate` (in the program itself), `synthetic`, or a path; the [module](super) says which.
///
/// Synthetic data is made for the network from the seed; other data must fit it.
///
/// # Errors
/// [`DataError`] if a file cannot be read or does not fit the network.
pub fn open_with(name: &str, network: &dyn Network, seed: u64, options: &Options) -> Result<Splits, DataError> {
    let (task, classes) = (network.task(), network.classes());
    let (splits, black, usual) = match (name, &task) {
        ("digits", _) => (CsvImages::digits(), vec![0.0], Augment::NONE),
        ("karate", _) => (karate::Karate::splits(), Vec::new(), Augment::NONE),
        ("synthetic", _) => {
            let black = if let Task::Images { shape } = task { vec![0.0; shape[0]] } else { Vec::new() };
            (Synthetic::splits(task.clone(), classes, seed), black, Augment::NONE)
        }
        (path, _) => read(Path::new(path), &task, classes, options)?,
    };
    let (data, data_classes) = (splits.train.task(), splits.train.classes());
    if data != task || data_classes > classes {
        return Err(DataError::Task { data, data_classes, task, classes });
    }
    let augment = options.augment.unwrap_or(usual);
    if augment != Augment::NONE && !matches!(task, Task::Images { .. }) {
        return Err(DataError::Augment { reason: format!("only images are augmented, and the model takes {task}") });
    }
    if augment.crop == Crop::Resized && usual.crop != Crop::Resized {
        let reason = format!("'{name}' has images of one size; only those in folders can be cropped and resized");
        return Err(DataError::Augment { reason });
    }
    Ok(Splits { train: augmented(splits.train, augment, black), test: splits.test })
}

/// Data from a path, what black is in it, and how it is usually augmented.
fn read(path: &Path, task: &Task, classes: usize, options: &Options) -> Result<(Splits, Vec<f32>, Augment), DataError> {
    let kind = |reason: String| DataError::Kind { path: path.to_owned(), task: task.clone(), reason };
    let metadata = path.metadata().map_err(|error| match error.kind() {
        ErrorKind::NotFound => kind(format!("No such file or folder, nor is it one of {}", NAMES.join(", "))),
        _ => unreadable(path, error),
    })?;
    match (task, metadata.is_dir()) {
        (&Task::Images { shape }, false) => Ok((CsvImages::read(path, shape)?, vec![0.0; shape[0]], Augment::NONE)),
        (&Task::Images { shape }, true) => {
            if idx::FILES.iter().any(|name| idx::find(path, name).is_some()) {
                let (splits, black) = idx::read(path, classes)?;
                Ok((splits, black, Augment::NONE))
            } else if let Some(path) = cifar::find(path) {
                let (splits, black) = cifar::read(&path)?;
                Ok((splits, black, Augment::SMALL))
            } else if folder::has_folders(path)? {
                let parts = options.augment.is_none_or(|augment| augment.crop == Crop::Resized);
                let (splits, black) = folder::read(path, shape, parts)?;
                Ok((splits, black, Augment::LARGE))
            } else {
                Err(kind(format!(
                    "looked in it for {} (IDX), {} (CIFAR-10), and folders of images (train/CLASS/ and {}/CLASS/, or CLASS/)",
                    idx::FILES[0],
                    cifar::FIRST,
                    folder::TEST_NAMES.join("|")
                )))
            }
        }
        (Task::NextToken { .. } | Task::MaskedToken { .. }, false) => {
            Ok((text::Text::read(path, task)?, Vec::new(), Augment::NONE))
        }
        (Task::NextToken { .. } | Task::MaskedToken { .. }, true) => {
            Err(kind("it is a folder; give a file, whose bytes are the tokens".to_owned()))
        }
        (Task::Nodes { .. }, _) => {
            Err(kind("graphs are not read from files; there are karate and synthetic".to_owned()))
        }
    }
}

/// What to set for a model to fit the data, if settings can do that.
pub(super) fn settings_for(data: &Task, data_classes: usize, task: &Task, classes: usize) -> String {
    let mut settings = Vec::new();
    match (data, task) {
        (&Task::Images { shape: [c, h, w] }, &Task::Images { shape }) if shape != [c, h, w] => {
            if c != shape[0] || h != w || shape[1] != shape[2] {
                return String::new();
            }
            settings.push(("size", h));
        }
        (&Task::Nodes { nodes, features, edges }, &Task::Nodes { nodes: n, features: f, edges: e }) => {
            let counts = [("nodes", nodes, n), ("features", features, f), ("edges", edges, e)];
            settings
                .extend(counts.iter().filter(|(_, data, model)| data != model).map(|&(name, data, _)| (name, data)));
        }
        _ if data != task => return String::new(),
        _ => {}
    }
    if data_classes > classes {
        let tokens = matches!(task, Task::NextToken { .. } | Task::MaskedToken { .. });
        settings.push((if tokens { "vocab" } else { "classes" }, data_classes));
    }
    let words: Vec<String> = settings.iter().map(|(name, value)| format!("--set {name}={value}")).collect();
    format!("; it fits with {}, if the model has {}", words.join(" "), if words.len() == 1 { "that" } else { "those" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo;

    #[test]
    fn a_mismatch_names_both_sides_and_what_would_fit() {
        let set = |data: Task, data_classes, task: Task, classes| settings_for(&data, data_classes, &task, classes);
        let images = |channels, size| Task::Images { shape: [channels, size, size] };
        assert_eq!(set(images(1, 28), 10, images(3, 32), 10), "");
        assert_eq!(set(Task::Images { shape: [3, 2, 3] }, 10, images(3, 2), 10), "");
        assert_eq!(set(images(3, 32), 10, images(3, 224), 10), "; it fits with --set size=32, if the model has that");
        assert_eq!(
            set(images(3, 32), 20, images(3, 224), 10),
            "; it fits with --set size=32 --set classes=20, if the model has those"
        );
        assert_eq!(set(images(3, 32), 20, images(3, 32), 10), "; it fits with --set classes=20, if the model has that");
        let nodes = |nodes, edges| Task::Nodes { nodes, features: 34, edges };
        assert_eq!(set(nodes(34, 190), 2, nodes(8, 190), 2), "; it fits with --set nodes=34, if the model has that");
        assert_eq!(set(nodes(34, 190), 2, images(3, 32), 2), "");
        let next = Task::NextToken { context: 4 };
        assert_eq!(set(next.clone(), 256, next, 100), "; it fits with --set vocab=256, if the model has that");

        let network = zoo::find("resnet18").unwrap().network(&Default::default()).unwrap();
        assert_eq!(
            open("digits", &*network, 0).unwrap_err().to_string(),
            "data has images 1x8x8 in 10 classes, but the model takes images 3x224x224 and tells 1000 classes apart"
        );
        assert_eq!(
            open("mnist", &*network, 0).unwrap_err().to_string(),
            "cannot read 'mnist' as images 3x224x224: No such file or folder, nor is it one of digits, karate, synthetic"
        );
    }

    #[test]
    fn augmentation_is_for_images_that_can_have_it() {
        let network = zoo::find("digit-cnn").unwrap().network(&Default::default()).unwrap();
        let open = |crop| {
            let options = Options { augment: Some(Augment { flip: false, crop }) };
            open_with("digits", &*network, 0, &options)
        };
        assert_eq!(
            open(Crop::Resized).unwrap_err().to_string(),
            "cannot augment: 'digits' has images of one size; only those in folders can be cropped and resized"
        );
        assert_eq!(open(Crop::Padded(1)).unwrap().train.len(), 1437);
    }
}
