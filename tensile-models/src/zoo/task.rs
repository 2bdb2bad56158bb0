//! What networks learn from.

use tensile_core::tensor::{DType, Shape, TensorType};

/// One input of a network: its name in the graph, and the type of one sample's part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the graph's input.
    pub name: &'static str,
    /// Element type, f32 or i32.
    pub dtype: DType,
    /// Shape for one sample; a batch has one dimension more in front.
    pub shape: Shape,
}

impl Field {
    fn new(name: &'static str, dtype: DType, shape: impl Into<Shape>) -> Self {
        Self { name, dtype, shape: shape.into() }
    }

    /// Type for a batch.
    pub fn batched(&self, batch: usize) -> TensorType {
        let dims: Vec<usize> = std::iter::once(batch).chain(self.shape.dims().iter().copied()).collect();
        TensorType::new(self.dtype, dims)
    }
}

/// What a sample is, and what there is to tell of it. Labels are classes from 0 up; a label of [`IGNORED`] counts nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// The class of an image: `images` f32[C, H, W]; one label.
    Images {
        /// Channels, height and width.
        shape: [usize; 3],
    },
    /// The next token at each place of a text: `tokens` `i32[T]`; T labels.
    NextToken {
        /// Tokens in a sample, T.
        context: usize,
    },
    /// The tokens that are hidden behind a mask token: `tokens` `i32[T]`; T labels.
    MaskedToken {
        /// Tokens in a sample, T.
        context: usize,
        /// What stands where a token is hidden.
        mask: i32,
    },
    /// The classes of the N nodes of a graph, which as a whole is one sample: `features` f32[N, F], and its E directed edges as `sources` `i32[E]`,
    /// `targets` `i32[E]` and `weights` `f32[E]`; N labels.
    Nodes {
        /// Nodes, N.
        nodes: usize,
        /// Features of a node, F.
        features: usize,
        /// Directed edges, E; those from a node to itself among them.
        edges: usize,
    },
}

/// The label of what does not count.
pub const IGNORED: i32 = -1;

impl Task {
    /// Inputs of a network for this task, in the order in which it takes them.
    pub fn fields(&self) -> Vec<Field> {
        match *self {
            Task::Images { shape } => vec![Field::new("images", DType::F32, shape)],
            Task::NextToken { context } | Task::MaskedToken { context, .. } => {
                vec![Field::new("tokens", DType::I32, [context])]
            }
            Task::Nodes { nodes, features, edges } => vec![
                Field::new("features", DType::F32, [nodes, features]),
                Field::new("sources", DType::I32, [edges]),
                Field::new("targets", DType::I32, [edges]),
                Field::new("weights", DType::F32, [edges]),
            ],
        }
    }

    /// The labels of a sample.
    pub fn labels(&self) -> Field {
        let shape: Shape = match *self {
            Task::Images { .. } => [].into(),
            Task::NextToken { context } | Task::MaskedToken { context, .. } => [context].into(),
            Task::Nodes { nodes, .. } => [nodes].into(),
        };
        Field { name: "labels", dtype: DType::I32, shape }
    }
}

impl Task {
    /// Tokens in a sample, where samples are texts.
    pub fn length(&self) -> Option<usize> {
        match *self {
            Task::NextToken { context } | Task::MaskedToken { context, .. } => Some(context),
            Task::Images { .. } | Task::Nodes { .. } => None,
        }
    }

    /// The same with texts of `length` tokens; as it is where samples are no texts.
    pub fn with_length(&self, length: usize) -> Self {
        match *self {
            Task::NextToken { .. } => Task::NextToken { context: length },
            Task::MaskedToken { mask, .. } => Task::MaskedToken { context: length, mask },
            Task::Images { .. } | Task::Nodes { .. } => self.clone(),
        }
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Task::Images { shape: [channels, height, width] } => write!(f, "images {channels}x{height}x{width}"),
            Task::NextToken { context } => write!(f, "next tokens of {context}"),
            Task::MaskedToken { context, .. } => write!(f, "masked tokens of {context}"),
            Task::Nodes { nodes, features, edges } => {
                write!(f, "a graph of {nodes} nodes with {features} features and {edges} edges")
            }
        }
    }
}
