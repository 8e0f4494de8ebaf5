//! Gates, and the norm of heads with a gate.

use kernels::metal;
use mlx::{
    Array, Result,
    metal::{Kernel, TemplateArg},
};

use super::{Prepared, bits_of, has_bits, is_available, is_trusted, random, spec};
use crate::{Activation, RmsNorm};

static GATED_NORM: Kernel = Kernel {
    name: "lanner_gated_norm",
    inputs: "x gate weight",
    outputs: "out",
    header: metal::MATH,
    body: metal::GATED_NORM,
};

static GATES: Kernel = Kernel {
    name: "lanner_gates",
    inputs: "gate x",
    outputs: "out",
    header: metal::MATH,
    body: metal::GATES,
};

/// `silu(gate) * norm(x)`, the norm over each head of `x` `[tokens, heads * dim]`, rounded once;
/// `None` if MLX has to do it.
#[track_caller]
pub(crate) fn gated_norm(x: &Array, gate: &Array, norm: &RmsNorm) -> Option<Array> {
    let weight = &norm.weight;
    if !is_available() || weight.dim(0) < 8 || x.dtype() != gate.dtype() {
        return None;
    }
    let dim = weight.dim(0);
    let template =
        [("T", TemplateArg::Type(x.dtype())), ("DIM", TemplateArg::Int(dim)), ("EPS", bits_of(norm.eps))];
    let run = |x: &Array, gate: &Array| {
        let prepared = Prepared {
            kernel: &GATED_NORM,
            template: &template,
            outputs: &[spec(x.shape(), x.dtype())],
            grid: [32, x.size() as i32 / dim, 1],
            threadgroup: [32, 4, 1],
        };
        let [out] = prepared.run(&[x, gate, weight]);
        out
    };
    let check = || {
        let [x, gate] = [1, 2].map(|seed| random(seed, &[3, 3 * dim], x.dtype()) * 4.0);
        let [own, own_gate, weight] = [&x, &gate, weight].map(Array::to_f32);
        let (own, own_gate, weight) = (own?, own_gate?, weight?);
        let mut expected = vec![0.0; own.len()];
        kernels::gated_rms_norm(&own, &own_gate, &weight, &mut expected, norm.eps);
        has_bits(&run(&x, &gate), expected)
    };
    is_trusted(&GATED_NORM, &template, &[x, gate, weight], check).then(|| run(x, gate))
}

/// `activation(gate) * up`, rounded once; `None` if MLX has to do it.
#[track_caller]
pub(crate) fn gated(gate: &Array, up: &Array, activation: Activation) -> Option<Array> {
    let kind = match activation {
        Activation::Silu => Gate::Silu,
        Activation::GeluTanh => Gate::GeluTanh,
        Activation::ClampedSwish { limit } => Gate::ClampedSwish { limit },
    };
    let width = gate.dim(-1);
    (gate.shape() == up.shape()).then(|| open(kind, [gate, up], [width, width, 0])).flatten()
}

/// `x` `[tokens, heads, dim]` times the sigmoid of the second half of each head of `q`
/// `[tokens, heads * 2 dim]`, rounded once; `None` if MLX has to do it.
#[track_caller]
pub(crate) fn sigmoid_gated(x: &Array, q: &Array) -> Option<Array> {
    let dim = x.dim(-1);
    open(Gate::Sigmoid, [q, x], [dim, 2 * dim, dim])
}

/// See gates.metal.
#[derive(Clone, Copy, PartialEq)]
enum Gate {
    Silu,
    GeluTanh,
    Sigmoid,
    ClampedSwish { limit: f32 },
}

impl Gate {
    /// Its number in the kernel, and its limit or 0.
    fn template(self) -> (i32, f32) {
        match self {
            Gate::Silu => (0, 0.0),
            Gate::GeluTanh => (1, 0.0),
            Gate::Sigmoid => (2, 0.0),
            Gate::ClampedSwish { limit } => (3, limit),
        }
    }
}

/// Rows of `width` numbers of `x` with gates that are `stride` apart, from `offset` on.
#[track_caller]
fn open(gate: Gate, [gates, x]: [&Array; 2], [width, stride, offset]: [i32; 3]) -> Option<Array> {
    if !is_available() || x.dtype() != gates.dtype() || x.size() == 0 {
        return None;
    }
    let (kind, limit) = gate.template();
    let template = [
        ("T", TemplateArg::Type(x.dtype())),
        ("KIND", TemplateArg::Int(kind)),
        ("LIMIT", bits_of(limit)),
        ("WIDTH", TemplateArg::Int(width)),
        ("GATE_STRIDE", TemplateArg::Int(stride)),
        ("GATE_OFFSET", TemplateArg::Int(offset)),
    ];
    let run = |gates: &Array, x: &Array| {
        let prepared = Prepared {
            kernel: &GATES,
            template: &template,
            outputs: &[spec(x.shape(), x.dtype())],
            grid: [width, x.size() as i32 / width, 1],
            threadgroup: [256.min(width), 1, 1],
        };
        let [out] = prepared.run(&[gates, x]);
        out
    };
    let check = || -> Result<bool> {
        let gates = random(1, &[3, stride], x.dtype()) * 6.0;
        let x = random(2, &[3, width], x.dtype());
        let expected = expected(gate, &gates, &x, [width, stride, offset])?;
        has_bits(&run(&gates, &x), expected)
    };
    is_trusted(&GATES, &template, &[gates, x], check).then(|| run(gates, x))
}

fn expected(gate: Gate, gates: &Array, x: &Array, [width, stride, offset]: [i32; 3]) -> Result<Vec<f32>> {
    let (gates, mut x) = (gates.to_f32()?, x.to_f32()?);
    let activation = match gate {
        Gate::Silu => kernels::Activation::Silu,
        Gate::GeluTanh => kernels::Activation::GeluTanh,
        Gate::ClampedSwish { limit } => kernels::Activation::ClampedSwish { limit },
        Gate::Sigmoid => {
            kernels::sigmoid_gated(&mut x, &gates[offset as usize..], stride as usize, width as usize);
            return Ok(x);
        }
    };
    let mut out = vec![0.0; x.len()];
    kernels::gated(&gates, &x, &mut out, activation);
    Ok(out)
}
