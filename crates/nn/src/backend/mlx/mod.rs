//! The MLX back end: operations made of MLX's own, for devices that we have no kernels for and as
//! the reference that our kernels are tested against. On Metal, kernels of ours take the place of
//! some.

mod attention;
mod batch;
mod conv;
mod core_attention;
mod delta_net;
mod embedding;
mod gelu;
mod layer_norm;
mod linear;
pub(crate) mod metal;
mod mlp;
mod moe;
mod norm;
mod quant;
mod residual;
mod rope;
mod row_calls;
mod softcap;

#[cfg(test)]
pub(crate) use self::{attention::attention, row_calls::need_everywhere as need_row_calls};
pub(crate) use self::{
    attention::{append_kv, attend, attend_both_ways, attend_cached, attend_latent, attend_together},
    conv::causal_conv,
    core_attention::core_attention,
    delta_net::{delta_net, gated_delta},
    embedding::check_token_ids,
    gelu::gelu,
    layer_norm::layer_norm,
    linear::{grouped_linear, place_unrounded, prepack, prepack_stack, project, rows},
    mlp::{feed_forward, gated},
    moe::{combine_experts, expert_outputs, route, top_k},
    norm::rms_norm,
    quant::quantize,
    residual::{add, add_gated_norm, add_projected},
    rope::rope,
    row_calls::take_report as take_row_calls,
    softcap::softcap,
};
