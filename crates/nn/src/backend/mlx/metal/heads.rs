//! Norms and rotation of queries and keys.

use kernels::{RopePairs, RopePositions, metal};
use mlx::{
    Array, Dtype, Result,
    metal::{Kernel, TemplateArg},
};

use super::{Prepared, bits_of, has_bits, is_available, is_trusted, random, spec};
use crate::{CoreAttention, Rope};

static HEADS: Kernel = Kernel {
    name: "lanner_heads",
    inputs: "q k query_weight key_weight positions axes frequencies",
    outputs: "rotated_q rotated_k",
    header: metal::MATH,
    body: metal::HEADS,
};

/// Norm and rotation of `q` `[tokens, heads * query_stride]` and `k` `[tokens, kv_heads *
/// head_dim]`, each `[tokens, .., head_dim]` then, and rounded once; `None` if MLX has to do it.
#[track_caller]
pub(crate) fn rotated(
    attention: &CoreAttention,
    [q, k]: [&Array; 2],
    positions: &Array,
) -> Option<[Array; 2]> {
    // The kernel's sine is good up to a million radians, and not for rotations of nothing.
    let rotates = !attention.rope.frequencies.is_empty()
        && attention.rope.frequencies.iter().all(|frequency| frequency.abs() <= 1.0);
    let fits = rotates && attention.rope.scale >= 0.0 && attention.head_dim >= 8 && q.dtype() == k.dtype();
    if !is_available() || !fits {
        return None;
    }
    let heads = Heads::new(attention, positions);
    let inputs = heads.inputs(attention);
    let [query_weight, key_weight, axes, frequencies] = &inputs;
    let inputs = [q, k, query_weight, key_weight, positions, axes, frequencies];
    let template = heads.template(q.dtype());
    let trusted = is_trusted(&HEADS, &template, &inputs, || heads.check(attention, q.dtype(), positions));
    trusted.then(|| heads.run(&template, &inputs))
}

/// The sizes of a call.
struct Heads<'a> {
    heads: i32,
    kv_heads: i32,
    dim: i32,
    stride: i32,
    columns: i32,
    rope: &'a Rope,
    eps: Option<[f32; 2]>,
}

impl<'a> Heads<'a> {
    fn new(attention: &'a CoreAttention, positions: &Array) -> Heads<'a> {
        let CoreAttention { heads, kv_heads, head_dim: dim, .. } = *attention;
        Heads {
            heads,
            kv_heads,
            dim,
            stride: if attention.output_gate { 2 * dim } else { dim },
            columns: if positions.ndim() == 2 { positions.dim(1) } else { 1 },
            rope: &attention.rope,
            eps: attention.qk_norm.as_ref().map(|norms| norms.each_ref().map(|norm| norm.eps)),
        }
    }

    /// Weights of norms, axes and frequencies.
    fn inputs(&self, attention: &CoreAttention) -> [Array; 4] {
        let pairs = self.rope.frequencies.len();
        let axes: Vec<i32> = match self.columns {
            1 => vec![0; pairs],
            _ => self.rope.axes.iter().map(|&axis| axis.into()).collect(),
        };
        let [axes, frequencies] = [
            Array::from_slice(&axes, &[pairs as i32]),
            Array::from_slice(&self.rope.frequencies, &[pairs as i32]),
        ];
        let [q, k] = match &attention.qk_norm {
            Some(norms) => norms.each_ref().map(|norm| norm.weight.clone()),
            // Nothing reads them.
            None => [frequencies.clone(), frequencies.clone()],
        };
        [q, k, axes, frequencies]
    }

    fn template(&self, dtype: Dtype) -> [(&'static str, TemplateArg); 12] {
        let [query_eps, key_eps] = self.eps.unwrap_or_default();
        [
            ("T", TemplateArg::Type(dtype)),
            ("HEADS", TemplateArg::Int(self.heads)),
            ("KV_HEADS", TemplateArg::Int(self.kv_heads)),
            ("DIM", TemplateArg::Int(self.dim)),
            ("QUERY_STRIDE", TemplateArg::Int(self.stride)),
            ("PAIRS", TemplateArg::Int(self.rope.frequencies.len() as i32)),
            ("COLUMNS", TemplateArg::Int(self.columns)),
            ("ADJACENT", TemplateArg::Bool(self.rope.pairs == RopePairs::Adjacent)),
            ("NORM", TemplateArg::Bool(self.eps.is_some())),
            ("QUERY_EPS", bits_of(query_eps)),
            ("KEY_EPS", bits_of(key_eps)),
            ("SCALE", bits_of(self.rope.scale)),
        ]
    }

    #[track_caller]
    fn run(&self, template: &[(&'static str, TemplateArg)], inputs: &[&Array; 7]) -> [Array; 2] {
        let (q, tokens) = (inputs[0], inputs[4].dim(0));
        let outputs = [self.heads, self.kv_heads].map(|heads| spec(&[tokens, heads, self.dim], q.dtype()));
        let prepared = Prepared {
            kernel: &HEADS,
            template,
            outputs: &outputs,
            grid: [32, self.heads + self.kv_heads, tokens],
            threadgroup: [32, 4, 1],
        };
        prepared.run(inputs)
    }

    /// Random heads of few tokens, whose positions MLX passes in another way, and of more.
    fn check(&self, attention: &CoreAttention, dtype: Dtype, positions: &Array) -> Result<bool> {
        Ok(self.check_tokens(5, attention, dtype, positions)?
            && self.check_tokens(9, attention, dtype, positions)?)
    }

    /// Tokens near and far.
    fn check_tokens(
        &self,
        tokens: i32,
        attention: &CoreAttention,
        dtype: Dtype,
        positions: &Array,
    ) -> Result<bool> {
        let q = random(1, &[tokens, self.heads * self.stride], dtype);
        let k = random(2, &[tokens, self.kv_heads * self.dim], dtype);
        let far: Vec<i32> = (0..tokens * self.columns).map(|i| i * i * 1009 % 100_000).collect();
        let shape = [&[tokens], &positions.shape()[1..]].concat();
        let positions = Array::from_slice(&far, &shape);
        let [query_weight, key_weight, axes, frequencies] = &self.inputs(attention);
        let inputs = [&q, &k, query_weight, key_weight, &positions, axes, frequencies];
        let [got_q, got_k] = self.run(&self.template(dtype), &inputs);
        let mut agree = true;
        for (i, (got, x, stride)) in [(got_q, &q, self.stride), (got_k, &k, self.dim)].into_iter().enumerate()
        {
            let own = x.reshape(&[-1, stride]).slice(1, 0, self.dim).to_f32()?;
            let normed = match &attention.qk_norm {
                Some(norms) => {
                    let weight = norms[i].weight.to_f32()?;
                    let mut normed = vec![0.0; own.len()];
                    kernels::rms_norm(&own, &weight, &mut normed, norms[i].eps);
                    normed
                }
                None => own,
            };
            agree &= has_bits(&got, self.expected(&normed, &far, got.dim(1)))?;
        }
        Ok(agree)
    }

    fn expected(&self, x: &[f32], positions: &[i32], heads: i32) -> Vec<f32> {
        let Rope { frequencies, axes, pairs, scale } = self.rope;
        let positions = RopePositions { values: positions, axes };
        let mut out = vec![0.0_f32; x.len()];
        let (heads, dim) = (heads as usize, self.dim as usize);
        kernels::rope(x, positions, frequencies, *pairs, *scale, &mut out, heads, dim);
        out
    }
}
