//! The CPU back end: our kernels as operations of MLX's graph.
//!
//! Weights become `Prepared*` values on first use: frozen arrays, which operations read without
//! taking them as inputs.

mod attention;
mod batch;
mod conv;
mod core_attention;
mod delta_net;
mod embedding;
mod gelu;
mod kv_copy;
mod layer_norm;
mod linear;
mod mlp;
mod moe;
mod norm;
mod quant;
mod residual;
mod rope;
mod softcap;
mod values;

pub(crate) use self::{
    attention::{append_kv, attend, attend_both_ways, attend_cached, attend_latent, attend_together},
    conv::causal_conv,
    core_attention::{PreparedAttention, core_attention},
    delta_net::{PreparedDeltaNet, commit, delta_net, gated_delta},
    embedding::check_token_ids,
    gelu::gelu,
    kv_copy::{unwritten, write_tokens},
    layer_norm::layer_norm,
    linear::{
        PreparedLinear, PreparedWeight, grouped_linear, place_unrounded, prepack, prepack_stack, project,
        rows,
    },
    mlp::{feed_forward, gated},
    moe::{combine_experts, expert_outputs, route, top_k},
    norm::{PreparedNorm, rms_norm},
    quant::quantize,
    residual::{add, add_gated_norm, add_projected},
    rope::rope,
    softcap::softcap,
};
