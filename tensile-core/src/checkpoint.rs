//! Saving and loading persistent tensors as safetensors files, under their names in the graph.
//!
//! A file is written beside its place under another name, brought to the disk, and renamed: whoever reads the path finds the old file or the
//! new one, whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use tensile_sched::Role;

use crate::exec::PersistentValue;
use crate::graph::Persistent;
use crate::tensor::{DType, TensorType};

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Parameters and buffers: what is needed to use the model.
    Model,
    /// Optimizer state as well: what is needed to train on.
    Training,
}

impl Contents {
    fn has(self, role: Role) -> bool {
        match self {
            Contents::Model => matches!(role, Role::Parameter | Role::Buffer),
            Contents::Training => role.is_persistent(),
        }
    }
}

/// A fault in saving or loading.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file could not be read.
    #[error("cannot read '{}': {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file could not be written; what stood there before stands there still.
    #[error("cannot write '{}': {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a whole safetensors file, or values could not be put into one.
    #[error("'{}' is not a safetensors file: {detail}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        detail: String,
    },
    /// The file is of another model.
    #[error("'{}' does not fit the model: {mismatch}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// All differences.
        mismatch: Mismatch,
    },
}

/// How a file differs from what a model needs. Sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// In the model, not in the file.
    pub missing: Vec<String>,
    /// In the file, not in the model.
    pub unexpected: Vec<String>,
    /// In both with different types: name, type in the model, type in the file.
    pub misshaped: Vec<(String, String, String)>,
}

impl Mismatch {
    fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.misshaped.is_empty()
    }
}

impl fmt::Display for Mismatch {
    /// One line: `missing a, b; unexpected c; of another shape: d is f32[3] in the model and f32[4] in the file`. Long lists are cut, with a count.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let list = |names: &[String]| {
            let rest = names.len().saturating_sub(SHOWN);
            let shown = names[..names.len() - rest].join(", ");
            if rest > 0 { format!("{shown} and {rest} more") } else { shown }
        };
        let shapes: Vec<String> = self
            .misshaped
            .iter()
            .map(|(name, model, file)| format!("{name} is {model} in the model and {file} in the file"))
            .collect();
        let parts: Vec<String> =
            [("missing ", &self.missing), ("unexpected ", &self.unexpected), ("of another shape: ", &shapes)]
                .into_iter()
                .filter(|(_, names)| !names.is_empty())
                .map(|(what, names)| format!("{what}{}", list(names)))
                .collect();
        f.write_str(&parts.join("; "))
    }
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
    }
}

/// As [`TensorType`] shows itself.
fn shown(view: &TensorView<'_>) -> String {
    let name = match view.dtype() {
        Dtype::F32 => "f32".to_owned(),
        Dtype::I32 => "i32".to_owned(),
        Dtype::U8 => "u8".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    format!("{name}{:?}", view.shape())
}

/// The bytes of a tensor in the file as the model holds it. PyTorch counts batches in i64 where we do in i32; counts that fit are taken over.
fn fitting(ty: &TensorType, view: &TensorView<'_>) -> Option<Vec<u8>> {
    if ty.dims() != view.shape() {
        return None;
    }
    if dtype(ty.dtype) == view.dtype() {
        return Some(view.data().to_vec());
    }
    if (ty.dtype, view.dtype()) != (DType::I32, Dtype::I64) {
        return None;
    }
    let mut bytes = Vec::with_capacity(ty.bytes());
    for word in view.data().chunks_exact(8) {
        let value = i64::from_le_bytes(word.try_into().expect("eight bytes"));
        bytes.extend(i32::try_from(value).ok()?.to_le_bytes());
    }
    Some(bytes)
}

/// Writes values of persistent tensors to a file, with `metadata` as text beside them. Values that `contents` does not have are left out.
///
/// # Errors
/// [`CheckpointError::Write`], [`CheckpointError::Format`].
pub fn save(
    path: &Path,
    state: &[PersistentValue],
    contents: Contents,
    metadata: &BTreeMap<String, String>,
) -> Result<(), CheckpointError> {
    let format = |error: safetensors::SafeTensorError| CheckpointError::Format {
        path: path.to_owned(),
        detail: error.to_string(),
    };
    let mut views = Vec::new();
    for value in state.iter().filter(|value| contents.has(value.persistent.role)) {
        let ty = &value.persistent.ty;
        let view = TensorView::new(dtype(ty.dtype), ty.dims().to_vec(), &value.bytes).map_err(format)?;
        views.push((value.persistent.name.as_str(), view));
    }
    let metadata = (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect());
    let bytes = safetensors::serialize(views, metadata).map_err(format)?;
    replace(path, &bytes).map_err(|source| CheckpointError::Write { path: path.to_owned(), source })
}

/// Whether [`save`] could write to a path now, found out before hours of training: makes the temporary file beside it and takes it away again. Temporary files that
/// processes have left which were killed while they saved go too, where the system tells which processes there are.
///
/// # Errors
/// [`CheckpointError::Write`].
pub fn check_writable(path: &Path) -> Result<(), CheckpointError> {
    let probe = || {
        let (path, temporary) = places(path)?;
        remove_leftovers(&path);
        File::create(&temporary)?;
        fs::remove_file(&temporary)
    };
    probe().map_err(|source| CheckpointError::Write { path: path.to_owned(), source })
}

/// The file to be replaced (what a link points to, so that the link stays), and a temporary one beside it.
fn places(path: &Path) -> std::io::Result<(PathBuf, PathBuf)> {
    let fault = |reason| Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, reason));
    let path = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return fault("it is not a regular file"),
        Ok(_) => path.canonicalize()?,
        Err(_) => path.to_owned(),
    };
    let Some(name) = path.file_name() else { return fault("the path has no file name") };
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary_name);
    Ok((path, temporary))
}

/// Removes temporary files beside a path whose processes are gone. That some stay is no fault: nothing reads them.
fn remove_leftovers(path: &Path) {
    let own = std::process::id().to_string();
    let processes = Path::new("/proc");
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else { return };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let process = file.to_str().and_then(|file| file.strip_prefix(&format!(".{name}."))?.strip_suffix(".tmp"));
        let Some(process) = process.filter(|process| process.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        if processes.join(&own).exists() && !processes.join(process).exists() {
            // It may be gone by now.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Puts a file in the place of another, or of none, in one step.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let (path, temporary) = places(path)?;
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let placed = written.and_then(|()| fs::rename(&temporary, &path));
    if placed.is_err() {
        // It may not even exist; the first error says what matters.
        let _ = fs::remove_file(&temporary);
    }
    placed
}

/// Reads the values of those of a job's persistent tensors that `contents` has, in their order. Tensors in the file that belong to the job otherwise
/// are passed over.
///
/// # Errors
/// [`CheckpointError::Mismatch`] with every missing, unexpected and mis-shaped name; [`CheckpointError::Read`]; [`CheckpointError::Format`] (a truncated file, too).
pub fn load(
    path: &Path,
    persistents: &[Persistent],
    contents: Contents,
) -> Result<Vec<PersistentValue>, CheckpointError> {
    load_published(path, persistents, contents, |name| Some(name.to_owned()))
}

/// As [`load`], from a file whose names may be others: `own_name` gets each name in the file that no tensor of the job has, and gives the one that it has there, or
/// none if it is not needed. A tensor that is in the file under its own name is taken from there.
///
/// # Errors
/// As [`load`].
pub fn load_published(
    path: &Path,
    persistents: &[Persistent],
    contents: Contents,
    own_name: impl Fn(&str) -> Option<String>,
) -> Result<Vec<PersistentValue>, CheckpointError> {
    let bytes = fs::read(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
    let file = parse(path, &bytes)?;
    let mut mismatch = Mismatch::default();
    // Names in the job, with those in the file.
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    let known: BTreeSet<&str> = persistents.iter().map(|persistent| persistent.name.as_str()).collect();
    let (own, others): (Vec<&str>, Vec<&str>) = file.names().into_iter().partition(|name| known.contains(name));
    names.extend(own.into_iter().map(|name| (name.to_owned(), name)));
    for name in others {
        match own_name(name) {
            Some(own) if known.contains(own.as_str()) => drop(names.entry(own).or_insert(name)),
            Some(_) => mismatch.unexpected.push(name.to_owned()),
            None => {}
        }
    }
    let mut values = Vec::new();
    for persistent in persistents.iter().filter(|persistent| contents.has(persistent.role)) {
        let Some(view) = names.get(&persistent.name).and_then(|name| file.tensor(name).ok()) else {
            mismatch.missing.push(persistent.name.clone());
            continue;
        };
        match fitting(&persistent.ty, &view) {
            Some(bytes) => values.push(PersistentValue { persistent: persistent.clone(), bytes }),
            None => mismatch.misshaped.push((persistent.name.clone(), persistent.ty.to_string(), shown(&view))),
        }
    }
    mismatch.missing.sort();
    mismatch.unexpected.sort();
    mismatch.misshaped.sort();
    if !mismatch.is_empty() {
        return Err(CheckpointError::Mismatch { path: path.to_owned(), mismatch });
    }
    Ok(values)
}

/// Reads the text that was saved beside the tensors.
///
/// # Errors
/// [`CheckpointError::Read`], [`CheckpointError::Format`].
pub fn load_metadata(path: &Path) -> Result<BTreeMap<String, String>, CheckpointError> {
    let bytes = fs::read(path).map_err(|source| CheckpointError::Read { path: path.to_owned(), source })?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)
        .map_err(|error| CheckpointError::Format { path: path.to_owned(), detail: error.to_string() })?;
    Ok(metadata.metadata().clone().unwrap_or_default().into_iter().collect())
}

fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>, CheckpointError> {
    SafeTensors::deserialize(bytes)
        .map_err(|error| CheckpointError::Format { path: path.to_owned(), detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Init;

    fn persistent(name: &str, role: Role, ty: TensorType) -> Persistent {
        Persistent { name: name.to_owned(), role, ty, init: Init::Constant(0.0) }
    }

    fn state() -> Vec<PersistentValue> {
        let weight = persistent("layer.weight", Role::Parameter, TensorType::f32([2, 3]));
        let moment = persistent("layer.weight.m", Role::OptimizerState, TensorType::f32([2, 3]));
        let count = persistent("count", Role::Buffer, TensorType::i32([]));
        vec![
            PersistentValue { persistent: weight, bytes: (0..24).collect() },
            PersistentValue { persistent: moment, bytes: (24..48).collect() },
            PersistentValue { persistent: count, bytes: vec![7, 0, 0, 0] },
        ]
    }

    fn persistents(state: &[PersistentValue]) -> Vec<Persistent> {
        state.iter().map(|value| value.persistent.clone()).collect()
    }

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tensile-checkpoint-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = Folder::new("round");
        let path = folder.0.join("model.safetensors");
        let state = state();
        let metadata = BTreeMap::from([("step".to_owned(), "12".to_owned())]);
        save(&path, &state, Contents::Training, &metadata).unwrap();
        assert_eq!(load(&path, &persistents(&state), Contents::Training).unwrap(), state);
        assert_eq!(load_metadata(&path).unwrap(), metadata);
        // The model alone, from the file with everything and from one of its own.
        let model = [state[0].clone(), state[2].clone()];
        assert_eq!(load(&path, &persistents(&state), Contents::Model).unwrap(), model);
        save(&path, &state, Contents::Model, &BTreeMap::new()).unwrap();
        assert_eq!(load(&path, &persistents(&state), Contents::Model).unwrap(), model);
        assert_eq!(load_metadata(&path).unwrap(), BTreeMap::new());
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn batch_counts_of_pytorch_are_taken_over() {
        let folder = Folder::new("i64");
        let path = folder.0.join("torch.safetensors");
        let counter = persistent("bn.num_batches_tracked", Role::Buffer, TensorType::i32([]));
        let write = |count: i64| {
            let bytes = count.to_le_bytes();
            let view = TensorView::new(Dtype::I64, vec![], &bytes).unwrap();
            fs::write(&path, safetensors::serialize([(counter.name.as_str(), view)], None).unwrap()).unwrap();
        };
        write(40_000);
        let values = load(&path, std::slice::from_ref(&counter), Contents::Model).unwrap();
        assert_eq!(values[0].bytes, 40_000i32.to_le_bytes());
        write(1 << 40);
        let error = load(&path, &[counter], Contents::Model).unwrap_err().to_string();
        assert!(error.contains("num_batches_tracked") && error.contains("i64[]"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_links_and_other_things_than_files_stay() {
        let folder = Folder::new("links");
        let (file, link) = (folder.0.join("file"), folder.0.join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        check_writable(&link).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        save(&link, &state(), Contents::Model, &BTreeMap::new()).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::metadata(&file).unwrap().len() > 3);
        let error = check_writable(&folder.0).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn all_differences_come_in_one_sentence() {
        let folder = Folder::new("mismatch");
        let path = folder.0.join("model.safetensors");
        save(&path, &state(), Contents::Model, &BTreeMap::new()).unwrap();
        let wanted = [
            persistent("layer.weight", Role::Parameter, TensorType::f32([3, 2])),
            persistent("layer.bias", Role::Parameter, TensorType::f32([3])),
        ];
        let error = load(&path, &wanted, Contents::Model).unwrap_err().to_string();
        let end = "does not fit the model: missing layer.bias; unexpected count; \
                   of another shape: layer.weight is f32[3, 2] in the model and f32[2, 3] in the file";
        assert!(error.ends_with(end), "{error}");
    }

    #[test]
    fn a_broken_file_is_refused_and_a_failed_save_keeps_the_old_one() {
        let folder = Folder::new("broken");
        let path = folder.0.join("model.safetensors");
        let state = state();
        save(&path, &state, Contents::Training, &BTreeMap::new()).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in [0, 5, 60, whole.len() - 1] {
            let cut = folder.0.join("cut.safetensors");
            fs::write(&cut, &whole[..length]).unwrap();
            let error = load(&cut, &persistents(&state), Contents::Training).unwrap_err();
            assert!(matches!(error, CheckpointError::Format { .. }), "{length} bytes: {error}");
        }
        assert!(matches!(load(&folder.0.join("none"), &[], Contents::Model), Err(CheckpointError::Read { .. })));
        let nowhere = folder.0.join("no folder").join("model.safetensors");
        let error = save(&nowhere, &state, Contents::Model, &BTreeMap::new()).unwrap_err();
        assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
        // A folder in the place of the file cannot be replaced.
        let taken = folder.0.join("taken");
        fs::create_dir_all(taken.join("inside")).unwrap();
        save(&taken, &state, Contents::Model, &BTreeMap::new()).unwrap_err();
        assert!(taken.join("inside").is_dir());
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}
