use proptest::prelude::*;

use super::*;
use crate::testing::{Outcome, float_bytes, run, values};

/// Sizes of a test.
#[derive(Clone, Debug)]
struct Case {
    images: usize,
    /// Channels of a group.
    inputs: usize,
    outputs: usize,
    size: [usize; 2],
    kernel: [usize; 2],
    conv: Conv2d,
}

impl Case {
    fn new(shape: [usize; 5], kernel: [usize; 2], conv: Conv2d) -> Self {
        let [images, inputs, outputs, height, width] = shape;
        Self { images, inputs, outputs, size: [height, width], kernel, conv }
    }

    fn x(&self) -> [usize; 4] {
        [self.images, self.inputs * self.conv.groups, self.size[0], self.size[1]]
    }

    fn w(&self) -> [usize; 4] {
        [self.outputs * self.conv.groups, self.inputs, self.kernel[0], self.kernel[1]]
    }

    /// Output and gradients of x, weight and bias on some threads.
    fn run(&self, threads: usize) -> Outcome {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32(self.x())).unwrap();
        let w = graph.input("w", TensorType::f32(self.w())).unwrap();
        let bias = graph.input("bias", TensorType::f32([self.w()[0]])).unwrap();
        let y = graph.conv2d(x, w, Some(bias), self.conv.clone()).unwrap();
        let plain = graph.conv2d(x, w, None, self.conv.clone()).unwrap();
        let dy = graph.input("dy", graph.ty(y).clone()).unwrap();
        let kernel = self.kernel;
        let dx = graph.apply1(Conv2dInputGrad { conv: self.conv.clone(), size: self.size }, &[dy, w]).unwrap();
        let dw = graph.apply1(Conv2dWeightGrad { conv: self.conv.clone(), kernel }, &[dy, x]).unwrap();
        let dbias = graph.channel_sum(dy).unwrap();
        for (name, value) in [("y", y), ("plain", plain), ("dx", dx), ("dw", dw), ("dbias", dbias)] {
            graph.output(name, value).unwrap();
        }
        let of = |value, seed| float_bytes(&values(graph.ty(value).numel(), seed));
        run(&graph, &[("x", of(x, 1)), ("w", of(w, 2)), ("bias", of(bias, 3)), ("dy", of(dy, 4))], &[], threads)
    }

    /// Checks everything against naive loops in f64, and the bits on several threads.
    fn check(&self) {
        let g = self.conv.geometry(&self.x(), &self.w()).unwrap();
        let [p, q] = g.output;
        let (x, w) = (values(self.x().iter().product(), 1), values(self.w().iter().product(), 2));
        let (bias, dy) = (values(g.outputs, 3), values(g.images * g.outputs * p * q, 4));
        let outcome = self.run(1);
        let (mut y, mut dx, mut dw) = (Sums::new(dy.len()), Sums::new(x.len()), Sums::new(w.len()));
        let mut dbias = Sums::new(g.outputs);
        for (index, &dy) in dy.iter().enumerate() {
            let (plane, pixel) = (index / (p * q), index % (p * q));
            let (image, k) = (plane / g.outputs, plane % g.outputs);
            dbias.add(k, f64::from(dy));
            for tap in 0..g.group_inputs() * g.n_taps() {
                let (c, r, s) = (tap / g.n_taps(), tap % g.n_taps() / g.kernel[1], tap % g.kernel[1]);
                let h = (pixel / q * g.stride[0] + r * g.dilation[0]).wrapping_sub(g.padding[0]);
                let v = (pixel % q * g.stride[1] + s * g.dilation[1]).wrapping_sub(g.padding[1]);
                if h >= g.input[0] || v >= g.input[1] {
                    continue;
                }
                let channel = k / g.group_outputs() * g.group_inputs() + c;
                let x_index = ((image * g.inputs + channel) * g.input[0] + h) * g.input[1] + v;
                let w_index = k * g.group_inputs() * g.n_taps() + tap;
                y.add(index, f64::from(x[x_index]) * f64::from(w[w_index]));
                dx.add(x_index, f64::from(dy) * f64::from(w[w_index]));
                dw.add(w_index, f64::from(dy) * f64::from(x[x_index]));
            }
        }
        y.check("plain", &outcome, self);
        for (index, sum) in y.sums.iter_mut().enumerate() {
            sum.0 += f64::from(bias[index / (p * q) % g.outputs]);
        }
        y.check("y", &outcome, self);
        dx.check("dx", &outcome, self);
        dw.check("dw", &outcome, self);
        dbias.check("dbias", &outcome, self);
        for threads in [2, 3] {
            assert!(self.run(threads) == outcome, "{self:?}: other bits on {threads} threads");
        }
    }
}

/// Expected values, with the sums of their terms' magnitudes.
struct Sums {
    sums: Vec<(f64, f64)>,
}

impl Sums {
    fn new(n: usize) -> Self {
        Self { sums: vec![(0.0, 1.0); n] }
    }

    fn add(&mut self, index: usize, term: f64) {
        let (sum, magnitude) = &mut self.sums[index];
        *sum += term;
        *magnitude += term.abs();
    }

    fn check(&self, name: &str, outcome: &Outcome, case: &Case) {
        let found = outcome.output(name);
        assert_eq!(found.len(), self.sums.len(), "{case:?}: {name}");
        for (index, (found, (sum, magnitude))) in found.iter().zip(&self.sums).enumerate() {
            let error = (f64::from(*found) - sum).abs();
            assert!(error <= 1e-6 * magnitude, "{case:?}: {name}[{index}] is {found}, not {sum}");
        }
    }
}

fn strided(stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2]) -> Conv2d {
    Conv2d { stride, padding, dilation, groups: 1 }
}

#[test]
fn everyday_convolutions() {
    for (shape, kernel, conv) in [
        ([1, 1, 1, 1, 1], [1, 1], Conv2d::default()),
        ([2, 3, 4, 7, 6], [3, 3], Conv2d::new(1, 1)),
        ([3, 16, 15, 9, 17], [1, 1], Conv2d::default()),
        ([2, 6, 40, 6, 6], [1, 1], Conv2d::new(2, 0)),
        ([1, 3, 33, 19, 21], [7, 7], Conv2d::new(2, 3)),
        ([2, 5, 29, 14, 14], [3, 3], Conv2d::new(2, 1)),
        ([9, 40, 10, 7, 7], [3, 3], Conv2d::new(1, 1)),
        ([1, 70, 65, 5, 40], [3, 3], Conv2d::new(1, 1)),
    ] {
        Case::new(shape, kernel, conv).check();
    }
}

#[test]
fn unusual_convolutions() {
    for (shape, kernel, conv) in [
        // More padding than kernel; a kernel as large as the input; unequal strides.
        ([2, 2, 3, 4, 5], [2, 3], strided([1, 1], [4, 5], [1, 1])),
        ([2, 3, 4, 5, 3], [5, 3], Conv2d::default()),
        ([1, 4, 3, 11, 12], [3, 2], strided([3, 4], [2, 1], [1, 1])),
        // Strides larger than the kernel leave pixels that nothing sees.
        ([2, 2, 5, 13, 10], [2, 2], Conv2d::new(5, 1)),
        // Dilation with and without a common divisor with the stride.
        ([1, 2, 3, 9, 9], [3, 3], strided([1, 1], [2, 2], [2, 2])),
        ([2, 3, 2, 17, 16], [3, 4], strided([2, 4], [3, 6], [2, 6])),
        ([1, 2, 2, 20, 9], [4, 3], strided([3, 2], [1, 4], [2, 3])),
        // Rows and columns only; wider than the kept ranges.
        ([2, 4, 3, 5, 9], [1, 7], strided([1, 1], [0, 3], [1, 1])),
        ([1, 2, 3, 3, 45], [2, 21], strided([1, 2], [1, 10], [1, 1])),
    ] {
        Case::new(shape, kernel, conv).check();
    }
}

#[test]
fn groups() {
    for (shape, kernel, conv) in [
        ([2, 2, 3, 6, 6], [3, 3], Conv2d::new(1, 1).groups(2)),
        ([2, 1, 1, 6, 6], [3, 3], Conv2d::new(1, 1).groups(4)),
        ([1, 1, 2, 19, 38], [3, 5], Conv2d { padding: [1, 3], ..Conv2d::new(2, 1) }.groups(5)),
        ([2, 2, 2, 7, 5], [3, 3], Conv2d { dilation: [2, 1], ..Conv2d::new(1, 2) }.groups(3)),
        ([1, 5, 9, 6, 9], [3, 3], Conv2d::new(2, 1).groups(4)),
        ([2, 40, 17, 6, 7], [1, 1], Conv2d::default().groups(3)),
    ] {
        Case::new(shape, kernel, conv).check();
    }
}

#[test]
fn errors_name_the_shapes() {
    let check = |x: &[usize], w: &[usize], bias: Option<usize>, conv: Conv2d, expected: &str| {
        let mut types = vec![TensorType::f32(x), TensorType::f32(w)];
        types.extend(bias.map(|n| TensorType::f32([n])));
        let error = conv.infer(&types).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&[2, 3, 8, 8], &[4, 3, 9, 3], None, Conv2d::default(), "reaches over 9 in height, the padded input has 8");
    check(&[2, 3, 8, 8], &[4, 2, 3, 3], None, Conv2d::default(), "3 input channels");
    check(&[2, 3, 8, 8], &[4, 3, 3, 3], Some(5), Conv2d::default(), "must be [4], not [5]");
    check(&[2, 3, 8], &[4, 3, 3, 3], None, Conv2d::default(), "[2, 3, 8]");
    check(&[2, 3, 8, 8], &[4, 3, 3, 3], None, Conv2d::new(0, 1), "at least 1");
    check(&[2, 0, 8, 8], &[4, 0, 3, 3], None, Conv2d::default(), "empty");
    let dy = [TensorType::f32([1, 4, 8, 8]), TensorType::f32([4, 3, 3, 3])];
    let error = Conv2dInputGrad { conv: Conv2d::new(1, 0), size: [8, 8] }.infer(&dy).unwrap_err().to_string();
    assert!(error.contains("[1, 4, 6, 6], not [1, 4, 8, 8]"), "{error}");
}

#[test]
fn costs_count_multiply_adds() {
    let conv = Conv2d::new(2, 1);
    let types = [TensorType::f32([2, 3, 8, 8]), TensorType::f32([5, 3, 3, 3]), TensorType::f32([5])];
    let outputs = conv.infer(&types).unwrap();
    let cost = conv.cost(&types, &outputs);
    assert_eq!(cost.flops, 2.0 * (2 * 5 * 4 * 4 * 27) as f64 + (2 * 5 * 4 * 4) as f64);
    assert_eq!(cost.bytes, 4.0 * (2 * 3 * 64 + 5 * 27 + 5 + 2 * 5 * 16) as f64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_convolution(
        shape in [1usize..4, 1..6, 1..18, 1..13, 1..22],
        kernel in [1usize..5, 1..5],
        stride in [1usize..4, 1..4],
        padding in [0usize..4, 0..4],
        dilation in [1usize..4, 1..4],
        groups in 1usize..4,
    ) {
        let case = Case::new(shape, kernel, Conv2d { stride, padding, dilation, groups });
        prop_assume!(case.conv.geometry(&case.x(), &case.w()).is_ok());
        case.check();
    }
}
