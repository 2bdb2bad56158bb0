//! Small networks of drawn sizes: together their training steps have every kind of op, over the range of sizes that models have.

use tensile_core::nn::{Conv, Mode, Net};
use tensile_core::op::pool::Pool2d;
use tensile_core::optim::{Optimizer, train};
use tensile_core::random::{philox4x32, words};
use tensile_core::{Graph, GraphError, Init, TensorType, Value};

/// How many networks of each kind are drawn.
const KINDS: [(Build, u32); 7] =
    [(dense, 90), (convolution, 140), (pointwise, 60), (pools, 50), (attention, 50), (embedding, 40), (pieces, 30)];

/// Adds a network and gives what is made a loss of.
type Build = fn(&mut Net<'_>, &mut Draw) -> Result<Value, GraphError>;

/// Training steps, each with the optimizer that it is given.
pub(super) fn graphs() -> impl Iterator<Item = impl Fn(&Optimizer) -> Result<Graph, GraphError>> {
    let all = KINDS.iter().enumerate().flat_map(|(kind, &(build, n))| (0..n).map(move |i| (kind as u32, build, i)));
    all.map(|(kind, build, index)| {
        move |optimizer: &Optimizer| {
            let mut graph = Graph::new();
            let mut draw = Draw { kind, index, drawn: 0 };
            let y = build(&mut Net::new(&mut graph, Mode::Train), &mut draw)?;
            // A loss of whatever it is: the mean of squares.
            let square = graph.mul(y, y)?;
            let axes: Vec<usize> = (0..graph.dims(square).len()).collect();
            let loss = if axes.is_empty() { square } else { graph.mean(square, &axes)? };
            let loss = graph.reshape(loss, [])?;
            graph.output("loss", loss)?;
            train(&mut graph, loss, optimizer)?;
            Ok(graph)
        }
    })
}

/// Numbers for one network; the same each time.
struct Draw {
    kind: u32,
    index: u32,
    drawn: u32,
}

impl Draw {
    fn unit(&mut self) -> f64 {
        self.drawn += 1;
        f64::from(philox4x32([self.kind, self.index, self.drawn, 0], words(2))[0]) / 4_294_967_296.0
    }

    /// Evenly on a scale of logarithms.
    fn size(&mut self, [least, most]: [usize; 2]) -> usize {
        let (least, most) = (least as f64, most as f64 + 0.999);
        (least * (most / least).powf(self.unit())) as usize
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.unit() * choices.len() as f64) as usize]
    }

    /// Sizes are often powers of two or multiples of eight; not always.
    fn width(&mut self, range: [usize; 2]) -> usize {
        let size = self.size(range);
        match self.one_of(&[0, 1, 2]) {
            0 => size,
            1 => size.next_multiple_of(8),
            _ => size.next_power_of_two(),
        }
    }
}

/// A tensor whose gradient is wanted.
fn leaf(net: &mut Net<'_>, dims: impl Into<Vec<usize>>) -> Result<Value, GraphError> {
    net.graph().parameter("x", dims.into(), Init::Constant(0.5))
}

fn dense(net: &mut Net<'_>, draw: &mut Draw) -> Result<Value, GraphError> {
    let (rows, inputs, outputs) = (draw.size([1, 2048]), draw.width([4, 4096]), draw.width([4, 4096]));
    let x = leaf(net, [rows, inputs])?;
    let y = if draw.one_of(&[true, false]) {
        net.linear("linear", x, outputs)?
    } else {
        net.linear_in_out("linear", x, outputs, 0.1)?
    };
    let y = if draw.one_of(&[true, false]) { net.graph().relu(y)? } else { net.graph().gelu(y)? };
    let classes = draw.width([2, 1024]);
    let logits = net.linear("head", y, classes)?;
    let labels = net.graph().input("labels", TensorType::i32([rows]))?;
    let right = net.graph().count_correct(logits, labels)?;
    net.graph().output("right", right)?;
    net.graph().softmax_cross_entropy(logits, labels)
}

fn convolution(net: &mut Net<'_>, draw: &mut Draw) -> Result<Value, GraphError> {
    let (kernel, stride) = (draw.one_of(&[1, 1, 3, 3, 3, 5, 7]), draw.one_of(&[1, 1, 1, 2]));
    let (images, size) = (draw.size([1, 32]), draw.size([7.max(kernel), 128]));
    let (inputs, outputs) = (draw.width([3, 512]), draw.width([8, 512]));
    let depthwise = draw.one_of(&[false, false, false, false, true]);
    let (groups, outputs) = if depthwise { (inputs, inputs) } else { (1, outputs) };
    let x = leaf(net, [images, inputs, size, size])?;
    let layer = Conv::new(outputs, kernel).stride(stride).padding(kernel / 2).groups(groups);
    let y = net.conv2d("conv", x, layer)?;
    let y = if draw.one_of(&[true, false]) { net.batch_norm("norm", y)? } else { y };
    net.graph().relu(y)
}

fn pools(net: &mut Net<'_>, draw: &mut Draw) -> Result<Value, GraphError> {
    let (images, channels, size) = (draw.size([1, 32]), draw.width([3, 512]), draw.size([4, 112]));
    let x = leaf(net, [images, channels, size, size])?;
    let [scale, shift] = ["scale", "shift"].map(|name| net.graph().parameter(name, [channels], Init::Constant(1.0)));
    let [mean, var] =
        ["mean", "var"].map(|name| net.graph().buffer(name, TensorType::f32([channels]), Init::Constant(1.0)));
    let x = net.graph().batch_norm_inference(x, [mean?, var?], scale?, shift?, 1e-5)?;
    let pool = if draw.one_of(&[true, false]) { Pool2d::new(2, 2) } else { Pool2d::new(3, 2).padding(1) };
    let y = match draw.one_of(&[0, 1, 2]) {
        0 => net.graph().max_pool2d(x, pool)?,
        1 => net.graph().avg_pool2d(x, pool, true)?,
        _ => {
            let windows = draw.one_of(&[1, 2, 4]);
            net.graph().adaptive_avg_pool2d(x, [windows, windows])?
        }
    };
    net.graph().global_avg_pool2d(y)
}

fn pointwise(net: &mut Net<'_>, draw: &mut Draw) -> Result<Value, GraphError> {
    let (rows, columns) = (draw.size([1, 8192]), draw.width([1, 4096]));
    let x = leaf(net, [rows, columns])?;
    let other = net.graph().parameter("other", [rows, columns], Init::Constant(0.5))?;
    let row = net.graph().parameter("row", [columns], Init::Constant(0.5))?;
    let column = net.graph().parameter("column", [rows, 1], Init::Constant(0.5))?;
    let mut y = net.graph().add(x, other)?;
    for _ in 0..4 {
        let with = draw.one_of(&[other, other, row, column]);
        y = match draw.one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) {
            0 => net.graph().sub(y, with)?,
            1 => net.graph().mul(y, with)?,
            2 => net.graph().div(y, with)?,
            3 => net.graph().sigmoid(y)?,
            4 => net.graph().tanh(y)?,
            5 => net.graph().gelu(y)?,
            6 => net.graph().relu(y)?,
            7 => net.graph().scale(y, 0.5)?,
            8 => net.dropout(y, 0.1)?,
            9 => net.graph().copy(y)?,
            _ => net.graph().add(y, with)?,
        };
    }
    Ok(y)
}

fn attention(net: &mut Net<'_>, draw: &mut Draw) -> Result<Value, GraphError> {
    let (batch, places) = (draw.size([1, 16]), draw.size([8, 512]));
    let (heads, width) = (draw.one_of(&[1, 2, 4, 8, 12]), draw.one_of(&[16, 32, 64]));
    let x = leaf(net, [batch, places, heads * width])?;
    let x = net.layer_norm("norm", x, 1e-5)?;
    let qkv = net.linear("qkv", x, 3 * heads * width)?;
    let parts = net.graph().split_heads(qkv, 3, heads)?;
    let causal = draw.one_of(&[true, false]);
    net.attention([parts[0], parts[1], parts[2]], causal, 0.1)
}

fn embedding(net: &mut Net<'_>, draw: &mut Draw) -> Result<Value, GraphError> {
    let (rows, width) = (draw.size([64, 32768]), draw.width([16, 1024]));
    let (batch, places) = (draw.size([1, 32]), draw.size([8, 512]));
    let table = net.table("table", [rows, width], 0.1)?;
    let indices = net.graph().input("indices", TensorType::i32([batch, places]))?;
    let y = net.graph().embedding(table, indices)?;
    net.layer_norm("norm", y, 1e-5)
}

fn pieces(net: &mut Net<'_>, draw: &mut Draw) -> Result<Value, GraphError> {
    let (images, channels, size) = (draw.size([1, 16]), draw.width([4, 256]), draw.size([4, 56]));
    let x = leaf(net, [images, channels, size, size])?;
    let parts: Vec<Value> = (0..draw.size([2, 8])).map(|_| net.graph().relu(x)).collect::<Result<_, _>>()?;
    let y = net.graph().concat(&parts, 1)?;
    let kept = draw.size([1, channels]);
    let y = net.graph().slice(y, 1, 0, kept)?;
    let y = net.graph().pad(y, &[0, 0, 1, 1], &[0, 0, 1, 1])?;
    let y = net.graph().permute(y, &[0, 2, 3, 1])?;
    let sums = net.graph().sum(y, &[1, 2])?;
    let sums = net.graph().reshape(sums, [images, 1, 1, kept])?;
    let y = net.graph().mul(y, sums)?;
    net.graph().softmax(y)
}
