//! Samples side by side.

use std::fmt;

use tensile_core::tensor::DType;

use crate::zoo::{Field, IGNORED, Task};

/// Elements of one input of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Numbers.
    F32(Vec<f32>),
    /// Indices.
    I32(Vec<i32>),
}

impl Column {
    fn zeros(field: &Field, batch: usize) -> Self {
        let len = batch * field.shape.numel();
        match field.dtype {
            DType::F32 => Self::F32(vec![0.0; len]),
            DType::I32 => Self::I32(vec![0; len]),
            _ => unreachable!("fields are f32 or i32"),
        }
    }

    /// The elements as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(x) => bytemuck::cast_slice(x),
            Self::I32(x) => bytemuck::cast_slice(x),
        }
    }

    fn clear_from(&mut self, first: usize) {
        match self {
            Self::F32(x) => x[first..].fill(0.0),
            Self::I32(x) => x[first..].fill(0),
        }
    }
}

/// What decides the types of a batch's inputs and labels, and so which step it takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Places for samples.
    pub samples: usize,
    /// What a sample is; texts may be shorter than the network's.
    pub task: Task,
}

impl fmt::Display for BatchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.samples, self.task)
    }
}

/// Inputs and labels of some samples. Places that no sample fills have zeros, and labels that do not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// One for each field of the task, with its name.
    columns: Vec<(Field, Column)>,
    labels: (Field, Vec<i32>),
    shape: BatchShape,
}

impl Batch {
    /// Room for `batch` samples, none of them there yet.
    pub fn new(task: &Task, batch: usize) -> Self {
        let column = |field: Field| {
            let column = Column::zeros(&field, batch);
            (field, column)
        };
        let labels = task.labels();
        let n_labels = batch * labels.shape.numel();
        Self {
            columns: task.fields().into_iter().map(column).collect(),
            labels: (labels, vec![IGNORED; n_labels]),
            shape: BatchShape { samples: batch, task: task.clone() },
        }
    }

    /// Samples there is room for.
    pub fn capacity(&self) -> usize {
        self.shape.samples
    }

    /// Places and what is in them.
    pub fn shape(&self) -> &BatchShape {
        &self.shape
    }

    /// The place of one sample.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn sample(&mut self, place: usize) -> Sample<'_> {
        assert!(place < self.shape.samples, "place {place} of {}", self.shape.samples);
        let inputs = self.columns.iter_mut().map(|(field, column)| {
            let n = field.shape.numel();
            match column {
                Column::F32(x) => Slot::F32(&mut x[place * n..][..n]),
                Column::I32(x) => Slot::I32(&mut x[place * n..][..n]),
            }
        });
        let n_labels = self.labels.0.shape.numel();
        Sample { inputs: inputs.collect(), labels: &mut self.labels.1[place * n_labels..][..n_labels] }
    }

    /// Empties all places from this one on.
    pub fn clear_from(&mut self, place: usize) {
        for (field, column) in &mut self.columns {
            column.clear_from(place * field.shape.numel());
        }
        self.labels.1[place * self.labels.0.shape.numel()..].fill(IGNORED);
    }

    /// The bytes of an input or of the labels, by its name.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        if name == self.labels.0.name {
            return Some(bytemuck::cast_slice(&self.labels.1));
        }
        self.column(name).map(Column::bytes)
    }

    /// The elements of an input, by its name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(field, _)| field.name == name).map(|(_, column)| column)
    }

    /// All labels.
    pub fn labels(&self) -> &[i32] {
        &self.labels.1
    }

    /// Labels that count.
    pub fn n_labels(&self) -> usize {
        self.labels.1.iter().filter(|&&label| label != IGNORED).count()
    }
}

/// Part of one sample in one input.
#[derive(Debug)]
pub enum Slot<'a> {
    /// Numbers.
    F32(&'a mut [f32]),
    /// Indices.
    I32(&'a mut [i32]),
}

/// Where a data set writes a sample.
#[derive(Debug)]
pub struct Sample<'a> {
    /// One for each field of the task, in order.
    inputs: Vec<Slot<'a>>,
    /// The labels.
    pub labels: &'a mut [i32],
}

impl Sample<'_> {
    /// The same place, for another to write first.
    pub fn reborrow(&mut self) -> Sample<'_> {
        let inputs = self.inputs.iter_mut().map(|slot| match slot {
            Slot::F32(x) => Slot::F32(x),
            Slot::I32(x) => Slot::I32(x),
        });
        Sample { inputs: inputs.collect(), labels: self.labels }
    }

    /// Numbers of field `index`.
    ///
    /// # Panics
    /// If the task has no such field of f32.
    pub fn f32(&mut self, index: usize) -> &mut [f32] {
        match &mut self.inputs[index] {
            Slot::F32(x) => x,
            Slot::I32(_) => panic!("field {index} holds indices"),
        }
    }

    /// Indices of field `index`.
    ///
    /// # Panics
    /// If the task has no such field of i32.
    pub fn i32(&mut self, index: usize) -> &mut [i32] {
        match &mut self.inputs[index] {
            Slot::I32(x) => x,
            Slot::F32(_) => panic!("field {index} holds numbers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_places_and_empty_places_count_nowhere() {
        let mut batch = Batch::new(&Task::Images { shape: [1, 1, 2] }, 3);
        for place in 0..3 {
            let mut sample = batch.sample(place);
            sample.f32(0).copy_from_slice(&[place as f32, 1.0]);
            sample.labels[0] = place as i32;
        }
        assert_eq!(batch.n_labels(), 3);
        batch.clear_from(2);
        assert_eq!(batch.labels(), [0, 1, IGNORED]);
        assert_eq!(batch.n_labels(), 2);
        assert_eq!(batch.bytes("images"), Some(bytemuck::cast_slice(&[0.0f32, 1.0, 1.0, 1.0, 0.0, 0.0])));
        assert_eq!(batch.bytes("labels").map(<[u8]>::len), Some(12));
        assert_eq!(batch.bytes("tokens"), None);
    }
}
