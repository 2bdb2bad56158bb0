use super::*;
use crate::testing::{Outcome, add_gradients, float_bytes, run, values};

struct Case {
    a: Vec<usize>,
    b: Vec<usize>,
    trans: [bool; 2],
    bias: bool,
}

impl Case {
    fn new(a: &[usize], b: &[usize]) -> Self {
        Self { a: a.to_vec(), b: b.to_vec(), trans: [false; 2], bias: false }
    }

    fn op(&self) -> MatMul {
        MatMul { trans_a: self.trans[0], trans_b: self.trans[1], sum_batch: false }
    }

    fn sizes(&self) -> Sizes {
        self.op().sizes(&TensorType::f32(&self.a[..]), &TensorType::f32(&self.b[..])).unwrap()
    }

    /// Output and gradients on some threads.
    fn run(&self, threads: usize) -> Outcome {
        let mut graph = Graph::new();
        let mut inputs = vec![
            graph.input("a", TensorType::f32(&self.a[..])).unwrap(),
            graph.input("b", TensorType::f32(&self.b[..])).unwrap(),
        ];
        if self.bias {
            inputs.push(graph.input("bias", TensorType::f32([self.sizes().size.n])).unwrap());
        }
        let y = graph.apply1(self.op(), &inputs).unwrap();
        graph.output("y", y).unwrap();
        add_gradients(&mut graph, y, &inputs).unwrap();
        let numels: Vec<usize> = inputs.iter().chain([&y]).map(|&value| graph.ty(value).numel()).collect();
        let mut data = vec![("a", float_bytes(&values(numels[0], 1))), ("b", float_bytes(&values(numels[1], 2)))];
        if self.bias {
            data.push(("bias", float_bytes(&values(numels[2], 3))));
        }
        data.push(("upstream", float_bytes(&values(*numels.last().unwrap(), 4))));
        run(&graph, &data, &[], threads)
    }

    /// Checks the output and all gradients against naive sums in f64, and the bits on several threads.
    fn check(&self) {
        let Sizes { size: Size { batch, m, n, k }, steps } = self.sizes();
        let (a, b) = (values(self.a.iter().product(), 1), values(self.b.iter().product(), 2));
        let (bias, dy) = (values(n, 3), values(batch * m * n, 4));
        let mut y: Vec<f64> =
            (0..batch * m * n).map(|index| if self.bias { f64::from(bias[index % n]) } else { 0.0 }).collect();
        let (mut da, mut db, mut dbias) = (vec![0.0; a.len()], vec![0.0; b.len()], vec![0.0; n]);
        for (index, &dy) in dy.iter().enumerate() {
            let (item, i, j) = (index / (m * n), index / n % m, index % n);
            dbias[j] += f64::from(dy);
            for l in 0..k {
                let a_index = item * steps[0] + if self.trans[0] { l * m + i } else { i * k + l };
                let b_index = item * steps[1] + if self.trans[1] { j * k + l } else { l * n + j };
                y[index] += f64::from(a[a_index]) * f64::from(b[b_index]);
                da[a_index] += f64::from(dy) * f64::from(b[b_index]);
                db[b_index] += f64::from(dy) * f64::from(a[a_index]);
            }
        }
        let outcome = self.run(1);
        let mut expected = vec![("y", y), ("grad0", da), ("grad1", db)];
        if self.bias {
            expected.push(("grad2", dbias));
        }
        for (name, expected) in expected {
            let difference = crate::testing::largest_difference(&outcome.output(name), &expected);
            assert!(difference < 3e-5, "{:?}·{:?} {:?}: {name} is off by {difference}", self.a, self.b, self.trans);
        }
        for threads in [2, 3] {
            assert!(self.run(threads) == outcome, "{:?}·{:?}: other bits on {threads} threads", self.a, self.b);
        }
    }
}

#[test]
fn matrices_and_batches_in_all_orientations() {
    /// Batch and matrix.
    type Side = (&'static [usize], [usize; 2]);
    let shapes: [[Side; 2]; 7] = [
        [(&[], [1, 1]), (&[], [1, 1])],
        [(&[], [17, 40]), (&[], [40, 65])],
        [(&[], [300, 20]), (&[], [20, 3])],
        [(&[2, 3], [4, 5]), (&[2, 3], [5, 6])],
        [(&[2, 3], [4, 5]), (&[], [5, 6])],
        [(&[], [33, 5]), (&[7], [5, 2])],
        [(&[1], [8, 300]), (&[1], [300, 20])],
    ];
    for [(batch_a, a), (batch_b, b)] in shapes {
        for flags in 0..4 {
            let trans = [flags & 1 != 0, flags & 2 != 0];
            let shape = |batch: &[usize], [rows, columns]: [usize; 2], transposed| {
                let matrix = if transposed { [columns, rows] } else { [rows, columns] };
                [batch, &matrix].concat()
            };
            let case = Case { a: shape(batch_a, a, trans[0]), b: shape(batch_b, b, trans[1]), trans, bias: false };
            case.check();
            Case { bias: true, ..case }.check();
        }
    }
}

#[test]
fn errors_name_the_shapes() {
    let error = |case: Case| {
        let types = [TensorType::f32(case.a.clone()), TensorType::f32(case.b.clone())];
        case.op().infer(&types).unwrap_err().to_string()
    };
    assert_eq!(
        error(Case { trans: [false, true], ..Case::new(&[2, 3], &[4, 5]) }),
        "the sum runs over 3 columns of a [2, 3] but 5 rows of b [4, 5], transposed"
    );
    assert_eq!(error(Case::new(&[3], &[3, 4])), "takes matrices, not [3] and [3, 4]");
    assert_eq!(error(Case::new(&[2, 3, 4], &[5, 4, 6])), "a [2, 3, 4] and b [5, 4, 6] differ in their batches");
}

#[test]
fn costs_count_multiply_adds() {
    let types = [TensorType::f32([6, 4, 5]), TensorType::f32([7, 5]), TensorType::f32([7])];
    let op = MatMul { trans_b: true, ..MatMul::default() };
    let outputs = op.infer(&types).unwrap();
    assert_eq!(outputs[0].dims(), [6, 4, 7]);
    let cost = op.cost(&types, &outputs);
    assert_eq!(cost.flops, (2 * 6 * 4 * 7 * 5 + 6 * 4 * 7) as f64);
    assert_eq!(cost.bytes, 4.0 * (6 * 4 * 5 + 7 * 5 + 7 + 6 * 4 * 7) as f64);
}
