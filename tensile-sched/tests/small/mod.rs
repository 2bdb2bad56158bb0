//! A dozen small steps, each with something in it that planners must get right.

use std::collections::BTreeMap;

use tensile_sched::{Bytes, InPlace, Nanos, Op, Role, Tensor, TensorId, Trace};

/// A step by name.
pub(crate) struct Small {
    pub(crate) name: &'static str,
    /// What is special about it.
    pub(crate) about: &'static str,
    pub(crate) trace: Trace,
}

/// Builds a trace from words.
///
/// Tensors are `role: name name …`, of 100 bytes each, or as many as stand behind a `/`: `param: w1 w2/50`. An op is `class: reads -> writes ; updates`, where a write `y=x` may take the
/// bytes of x over. Ops take 100 ns, or as many as stand behind the class: `conv@300: x w -> y`. `!class` cannot be replayed; `class+40` has 40 bytes of workspace.
fn trace(tensors: &[&str], ops: &[&str]) -> Trace {
    let mut ids = BTreeMap::new();
    let mut list = Vec::new();
    for line in tensors {
        let (role, names) = line.split_once(':').expect("role: names");
        let (role, keep) = match role {
            "param" => (Role::Parameter, false),
            "moment" => (Role::OptimizerState, false),
            "buffer" => (Role::Buffer, false),
            "input" => (Role::Input, false),
            "activation" => (Role::Activation, false),
            "gradient" => (Role::Gradient, false),
            "kept" => (Role::Gradient, true),
            "output" => (Role::Output, false),
            other => panic!("no role is called {other}"),
        };
        for word in names.split_whitespace() {
            let (name, bytes) = word.split_once('/').unwrap_or((word, "100"));
            let bytes = Bytes(bytes.parse().expect("a number of bytes"));
            ids.insert(name.to_string(), TensorId::from_index(list.len()));
            list.push(Tensor { name: name.into(), bytes, role, keep });
        }
    }
    let id = |name: &str| *ids.get(name).unwrap_or_else(|| panic!("no tensor is called {name}"));
    let op = |line: &&str| {
        let (head, rest) = line.split_once(':').expect("class: reads -> writes");
        let (rest, updates) = rest.split_once(';').unwrap_or((rest, ""));
        let (reads, writes) = rest.split_once("->").unwrap_or((rest, ""));
        let (head, workspace) = head.split_once('+').unwrap_or((head, "0"));
        let (class, latency) = head.split_once('@').unwrap_or((head, "100"));
        let is_pure = !class.starts_with('!');
        let pairs = writes.split_whitespace().filter_map(|word| word.split_once('='));
        let updates: Vec<TensorId> = updates.split_whitespace().map(id).collect();
        Op {
            label: class.trim_start_matches('!').into(),
            class: class.trim_start_matches('!').into(),
            reads: reads.split_whitespace().map(id).collect(),
            writes: writes.split_whitespace().map(|word| id(word.split('=').next().unwrap_or(word))).collect(),
            replayable: is_pure && updates.is_empty(),
            updates,
            workspace: Bytes(workspace.parse().expect("a number of bytes")),
            latency: Nanos(latency.parse().expect("a number of nanoseconds")),
            in_place: pairs.map(|(output, input)| InPlace { input: id(input), output: id(output) }).collect(),
        }
    };
    Trace::new(list, ops.iter().map(op).collect()).expect("a valid step")
}

/// All of them.
pub(crate) fn all() -> Vec<Small> {
    let small = |name, about, tensors: &[&str], ops: &[&str]| Small { name, about, trace: trace(tensors, ops) };
    vec![
        small(
            "chain",
            "six layers and their backward pass, which needs what each has read",
            &["input: x", "activation: a1 a2 a3 a4 a5 a6", "gradient: g6 g5 g4 g3 g2 g1"],
            &[
                "conv: x -> a1",
                "conv: a1 -> a2",
                "conv: a2 -> a3",
                "conv: a3 -> a4",
                "conv: a4 -> a5",
                "conv: a5 -> a6",
                "loss: a6 -> g6",
                "conv_grad: a5 g6 -> g5",
                "conv_grad: a4 g5 -> g4",
                "conv_grad: a3 g4 -> g3",
                "conv_grad: a2 g3 -> g2",
                "conv_grad: a1 g2 -> g1",
                "conv_grad: x g1",
            ],
        ),
        small(
            "residual",
            "a skip around two layers: its tensor is read again in the forward pass",
            &["input: x", "activation: a b c s d", "gradient: gs gc gb ga"],
            &[
                "conv: x -> a",
                "conv: a -> b",
                "conv: b -> c",
                "add: a c -> s",
                "conv: s -> d",
                "loss: d s -> gs",
                "conv_grad: b gs -> gc",
                "conv_grad: a gc -> gb",
                "add: gb gs -> ga",
                "conv_grad: x ga",
            ],
        ),
        small(
            "adam",
            "parameters with two moments each, updated as soon as the gradient is there",
            &[
                "param: w1 w2 w3",
                "moment: m1 v1 m2 v2 m3 v3",
                "input: x",
                "activation: a1 a2 a3",
                "gradient: g3 d3 g2 d2 g1 d1",
            ],
            &[
                "linear: x w1 -> a1",
                "linear: a1 w2 -> a2",
                "linear: a2 w3 -> a3",
                "loss: a3 -> g3",
                "linear_grad: a2 g3 -> d3",
                "linear_grad: w3 g3 -> g2",
                "adam: d3 ; w3 m3 v3",
                "linear_grad: a1 g2 -> d2",
                "linear_grad: w2 g2 -> g1",
                "adam: d2 ; w2 m2 v2",
                "linear_grad: x g1 -> d1",
                "adam: d1 ; w1 m1 v1",
            ],
        ),
        small(
            "unet",
            "two levels down and up again: what goes down first is wanted last",
            &["input: x", "activation: a/200 p b q/50 u r/200 t", "gradient: gt gr gu/50 gq gb ga/200"],
            &[
                "conv@200: x -> a",
                "pool@50: a -> p",
                "conv: p -> b",
                "pool@50: b -> q",
                "conv: q -> u",
                "conv: u b -> r",
                "conv@200: r a -> t",
                "loss: t -> gt",
                "conv_grad@400: r a gt -> gr",
                "conv_grad@200: u b gr -> gu",
                "conv_grad@200: q gu -> gq",
                "conv_grad@200: p gq b -> gb",
                "conv_grad@400: x gb a -> ga",
            ],
        ),
        small(
            "tied",
            "one embedding at both ends, read first and last in each pass and updated once",
            &["param: e/300 w", "input: x/20", "activation: h1 h2 h3", "gradient: g3 de/300 g2 dw g1 df/300"],
            &[
                "embedding: x e -> h1",
                "linear: h1 w -> h2",
                "linear: h2 e -> h3",
                "loss: h3 -> g3",
                "linear_grad: h2 g3 -> de",
                "linear_grad: e g3 -> g2",
                "linear_grad: h1 g2 -> dw",
                "linear_grad: w g2 -> g1",
                "embedding_grad: x g1 -> df",
                "add: de df -> ",
                "sgd: dw ; w",
                "sgd: de df ; e",
            ],
        ),
        small(
            "inputs_and_outputs",
            "inputs read twice, an output in mid-step and one at the end",
            &["input: x mask/50", "activation: a b c", "output: y z/10", "gradient: g"],
            &[
                "linear: x -> a",
                "linear: a -> y",
                "linear: a mask -> b",
                "linear: b -> c",
                "linear: c x -> g",
                "linear: g mask a -> z",
            ],
        ),
        small(
            "in_place",
            "activations in the bytes of what they read, except where that is wanted again",
            &["input: x", "activation: a r1 b r2 c r3", "gradient: g3 h3 g2 h2 g1"],
            &[
                "conv: x -> a",
                "relu@20: a -> r1=a",
                "conv: r1 -> b",
                "relu@20: b -> r2=b",
                "conv: r2 -> c",
                "relu@20: c -> r3=c",
                "loss: r3 -> g3",
                "relu_grad@20: r3 g3 -> h3=g3",
                "conv_grad: r2 h3 -> g2",
                "relu_grad@20: r2 g2 -> h2=g2",
                "conv_grad: r1 h2 -> g1",
                "conv_grad: x g1",
            ],
        ),
        small(
            "dropout",
            "a mask that cannot be made again: it must stay or be copied, and what follows from it can be recomputed",
            &["input: x", "activation: a k d b e", "gradient: gb gd ga"],
            &[
                "linear: x -> a",
                "!dropout@20: a -> k d",
                "linear: d -> b",
                "gelu@20: b -> e",
                "loss: e -> gb",
                "gelu_grad@20: b gb -> gd",
                "dropout_grad@20: k gd -> ga",
                "linear_grad: a x ga",
            ],
        ),
        small(
            "workspace",
            "convolutions whose workspace, not their tensors, makes the peak",
            &["input: x", "activation: a b c", "gradient: gc gb ga"],
            &[
                "conv: x -> a",
                "conv+200: a -> b",
                "conv: b -> c",
                "loss: c -> gc",
                "conv_grad: b gc -> gb",
                "conv_grad+200: a gb -> ga",
                "conv_grad: x ga",
            ],
        ),
        small(
            "kept_gradients",
            "no optimizer: gradients pile up until the end of the step",
            &["param: w1 w2 w3", "input: x", "activation: a1 a2 a3", "gradient: g3 g2 g1", "kept: d1 d2 d3"],
            &[
                "linear: x w1 -> a1",
                "linear: a1 w2 -> a2",
                "linear: a2 w3 -> a3",
                "loss: a3 -> g3",
                "linear_grad: a2 g3 w3 -> d3 g2",
                "linear_grad: a1 g2 w2 -> d2 g1",
                "linear_grad: x g1 -> d1",
            ],
        ),
        small(
            "dense",
            "each layer reads all before it",
            &["input: x/50", "activation: a b c d", "gradient: gd gc gb ga"],
            &[
                "conv: x -> a",
                "conv: x a -> b",
                "conv: x a b -> c",
                "conv: x a b c -> d",
                "loss: d -> gd",
                "conv_grad@200: x a b c gd -> gc",
                "conv_grad@200: x a b gc -> gb",
                "conv_grad@200: x a gb -> ga",
                "conv_grad@200: x ga",
            ],
        ),
        small(
            "statistics",
            "running statistics, updated in the forward pass and never copied to where they are read",
            &["param: w", "buffer: s/40", "input: x", "activation: a n b", "gradient: gb gn ga dw"],
            &[
                "conv: x w -> a",
                "norm: a -> n",
                "statistics@20: a ; s",
                "relu@20: n -> b",
                "loss: b -> gb",
                "relu_grad@20: n gb -> gn",
                "norm_grad: a gn -> ga",
                "conv_grad: x ga -> dw",
                "sgd@20: dw ; w",
            ],
        ),
    ]
}
