//! `conv2d` and its gradients.

use super::channel_sum::ChannelSum;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::conv::{self, Geometry};
use crate::tensor::{DType, TensorType};

/// Convolution (cross-correlation) of images, with zeros around them. Pairs are (height, width).
///
/// Inputs x `[N, C, H, W]`, weight `[K, C/groups, R, S]` and, if given, bias `[K]`; output `[N, K, P, Q]` with
/// P = ⌊(H + 2·padding − dilation·(R − 1) − 1)/stride⌋ + 1 and Q likewise. All f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Pixels between neighbouring positions of the kernel.
    pub stride: [usize; 2],
    /// Rows and columns of zeros on each side.
    pub padding: [usize; 2],
    /// Pixels between neighbouring elements of the kernel.
    pub dilation: [usize; 2],
    /// Parts that channels are divided into; each output channel sees its own part of the input channels.
    pub groups: usize,
}

impl Default for Conv2d {
    /// Stride 1, no padding, no dilation, one group.
    fn default() -> Self {
        Self { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

/// Gradient of [`Conv2d`] by its input: inputs dy `[N, K, P, Q]` and weight, output `[N, C, H, W]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv2dInputGrad {
    /// The convolution.
    pub conv: Conv2d,
    /// H and W, which P and Q do not tell.
    pub size: [usize; 2],
}

/// Gradient of [`Conv2d`] by its weight: inputs dy `[N, K, P, Q]` and x `[N, C, H, W]`, output `[K, C/groups, R, S]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv2dWeightGrad {
    /// The convolution.
    pub conv: Conv2d,
    /// R and S, which P and Q do not tell.
    pub kernel: [usize; 2],
}

impl Conv2d {
    /// A square kernel's usual case: the same stride and padding both ways.
    pub fn new(stride: usize, padding: usize) -> Self {
        Self { stride: [stride; 2], padding: [padding; 2], ..Self::default() }
    }

    /// With channels in groups.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// Sizes for an input `[N, C, H, W]` and a weight `[K, C/groups, R, S]`.
    fn geometry(&self, x: &[usize], w: &[usize]) -> Result<Geometry, OpError> {
        let (&[images, inputs, height, width], &[outputs, group_inputs, rows, columns]) = (x, w) else {
            return Err(OpError(format!("takes x [N, C, H, W] and weight [K, C/groups, R, S], not {x:?} and {w:?}")));
        };
        if [self.stride, self.dilation].as_flattened().contains(&0) || self.groups == 0 {
            return Err(OpError(format!(
                "stride {:?}, dilation {:?} and groups {} must be at least 1",
                self.stride, self.dilation, self.groups
            )));
        }
        if x.contains(&0) || w.contains(&0) {
            return Err(OpError(format!("does not take empty tensors: {x:?} and {w:?}")));
        }
        if group_inputs.checked_mul(self.groups) != Some(inputs) || outputs % self.groups != 0 {
            return Err(OpError(format!(
                "{inputs} input channels and {outputs} output channels in {} groups do not fit a weight {w:?}",
                self.groups
            )));
        }
        let (input, kernel) = ([height, width], [rows, columns]);
        let mut output = [0; 2];
        for axis in 0..2 {
            let padded = input[axis] + 2 * self.padding[axis];
            let reach = self.dilation[axis] * (kernel[axis] - 1) + 1;
            if padded < reach {
                let axis = ["height", "width"][axis];
                return Err(OpError(format!(
                    "the kernel reaches over {reach} in {axis}, the padded input has {padded}"
                )));
            }
            output[axis] = (padded - reach) / self.stride[axis] + 1;
        }
        Ok(Geometry {
            images,
            groups: self.groups,
            inputs,
            outputs,
            input,
            output,
            kernel,
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
        })
    }
}

fn all_f32(inputs: &[TensorType], n: &[usize]) -> Result<(), OpError> {
    if !n.contains(&inputs.len()) || inputs.iter().any(|ty| ty.dtype != DType::F32) {
        let n = n.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        return Err(OpError(format!("takes {n} f32 tensors")));
    }
    Ok(())
}

fn check_output_grad(dy: &TensorType, g: &Geometry) -> Result<(), OpError> {
    let [p, q] = g.output;
    let expected = [g.images, g.outputs, p, q];
    if dy.dims() == expected {
        return Ok(());
    }
    Err(OpError(format!("the gradient of the output must be {expected:?}, not {}", dy.shape)))
}

/// Invariant of kernels, costs and workspaces: they see only types that `infer` has accepted.
const INFERRED: &str = "shapes were checked when the op was added";

impl OpDef for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        all_f32(inputs, &[2, 3])?;
        let g = self.geometry(inputs[0].dims(), inputs[1].dims())?;
        if let Some(bias) = inputs.get(2)
            && bias.dims() != [g.outputs]
        {
            return Err(OpError(format!("the bias must be [{}], not {}", g.outputs, bias.shape)));
        }
        Ok(vec![TensorType::f32([g.images, g.outputs, g.output[0], g.output[1]])])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grads[0].expect("an op with one output is visited only if that output has a gradient");
        let (x, w) = (call.inputs[0], call.inputs[1]);
        let mut grads = vec![None; call.inputs.len()];
        if call.needs[0] {
            let size = [call.graph.dims(x)[2], call.graph.dims(x)[3]];
            grads[0] = Some(call.graph.apply1(Conv2dInputGrad { conv: self.clone(), size }, &[dy, w])?);
        }
        if call.needs[1] {
            let kernel = [call.graph.dims(w)[2], call.graph.dims(w)[3]];
            grads[1] = Some(call.graph.apply1(Conv2dWeightGrad { conv: self.clone(), kernel }, &[dy, x])?);
        }
        if call.needs.get(2) == Some(&true) {
            grads[2] = Some(call.graph.apply1(ChannelSum, &[dy])?);
        }
        Ok(grads)
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let g = self.geometry(inputs[0].dims(), inputs[1].dims()).expect(INFERRED);
        let bias = if inputs.len() > 2 { outputs[0].numel() as f64 } else { 0.0 };
        Cost { flops: g.flops() + bias, bytes: bytes(inputs, outputs) }
    }

    fn host_workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], threads: usize) -> usize {
        let g = self.geometry(inputs[0].dims(), inputs[1].dims()).expect(INFERRED);
        conv::forward_workspace(&g, threads) * size_of::<f32>()
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let g = self.geometry(call.input_type(0).dims(), call.input_type(1).dims()).expect(INFERRED);
        let bias = (call.n_inputs() > 2).then(|| call.input(2));
        let operands = (call.input(0), call.input(1), bias);
        conv::forward(&g, operands, call.output(0), call.workspace(), call.threads());
    }
}

impl Conv2dInputGrad {
    fn geometry(&self, inputs: &[TensorType]) -> Result<Geometry, OpError> {
        all_f32(inputs, &[2])?;
        let (dy, w) = (&inputs[0], &inputs[1]);
        let (&[images, ..], &[_, group_inputs, ..]) = (dy.dims(), w.dims()) else {
            return Err(OpError(format!("takes dy [N, K, P, Q] and weight [K, C/groups, R, S], not {dy} and {w}")));
        };
        let channels = group_inputs.saturating_mul(self.conv.groups);
        let g = self.conv.geometry(&[images, channels, self.size[0], self.size[1]], w.dims())?;
        check_output_grad(dy, &g)?;
        Ok(g)
    }
}

impl OpDef for Conv2dInputGrad {
    fn name(&self) -> &'static str {
        "conv2d_input_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let g = self.geometry(inputs)?;
        Ok(vec![TensorType::f32([g.images, g.inputs, g.input[0], g.input[1]])])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: self.geometry(inputs).expect(INFERRED).flops(), bytes: bytes(inputs, outputs) }
    }

    fn host_workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], threads: usize) -> usize {
        conv::input_grad_workspace(&self.geometry(inputs).expect(INFERRED), threads) * size_of::<f32>()
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let inputs = [call.input_type(0).clone(), call.input_type(1).clone()];
        let g = self.geometry(&inputs).expect(INFERRED);
        conv::input_grad(&g, (call.input(0), call.input(1)), call.output(0), call.workspace(), call.threads());
    }
}

impl Conv2dWeightGrad {
    fn geometry(&self, inputs: &[TensorType]) -> Result<Geometry, OpError> {
        all_f32(inputs, &[2])?;
        let (dy, x) = (&inputs[0], &inputs[1]);
        let (&[_, outputs, ..], &[_, channels, ..]) = (dy.dims(), x.dims()) else {
            return Err(OpError(format!("takes dy [N, K, P, Q] and x [N, C, H, W], not {dy} and {x}")));
        };
        let group_inputs = channels / self.conv.groups.max(1);
        let g = self.conv.geometry(x.dims(), &[outputs, group_inputs, self.kernel[0], self.kernel[1]])?;
        check_output_grad(dy, &g)?;
        Ok(g)
    }
}

impl OpDef for Conv2dWeightGrad {
    fn name(&self) -> &'static str {
        "conv2d_weight_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let g = self.geometry(inputs)?;
        Ok(vec![TensorType::f32([g.outputs, g.group_inputs(), g.kernel[0], g.kernel[1]])])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: self.geometry(inputs).expect(INFERRED).flops(), bytes: bytes(inputs, outputs) }
    }

    fn host_workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], threads: usize) -> usize {
        conv::weight_grad_workspace(&self.geometry(inputs).expect(INFERRED), threads) * size_of::<f32>()
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let inputs = [call.input_type(0).clone(), call.input_type(1).clone()];
        let g = self.geometry(&inputs).expect(INFERRED);
        conv::weight_grad(&g, (call.input(0), call.input(1)), call.output(0), call.workspace(), call.threads());
    }
}

fn bytes(inputs: &[TensorType], outputs: &[TensorType]) -> f64 {
    inputs.iter().chain(outputs).map(|ty| ty.bytes() as f64).sum()
}

impl Graph {
    /// Convolution of x `[N, C, H, W]` with weight `[K, C/groups, R, S]`, plus bias `[K]`.
    ///
    /// # Errors
    /// If the shapes or types do not fit.
    pub fn conv2d(&mut self, x: Value, weight: Value, bias: Option<Value>, conv: Conv2d) -> Result<Value, GraphError> {
        let inputs: Vec<Value> = [x, weight].into_iter().chain(bias).collect();
        self.apply1(conv, &inputs)
    }
}

#[cfg(test)]
mod tests;
