//! The CUDA back end: our kernels on an NVIDIA GPU, with the bits of the CPU's.
//!
//! Arrays that kernels read are brought to the device, and stay there. What has no kernel is the
//! CPU back end's, on copies in the host's memory; each such operation is reported once.

mod attend;
mod attention;
mod conv;
mod core_attention;
mod delta_net;
mod delta_state;
mod experts;
mod floats;
mod launch;
mod linear;
mod matrix;
mod mlp;
mod moe;
mod multiply;
mod norm;
mod open;
mod persistent;
mod products;
mod residual;
mod sample;
mod skinny;
mod softcap;

pub(crate) use self::{
    attention::{append_kv, attend, attend_cached, attend_latent, rope},
    conv::causal_conv,
    core_attention::{DeviceAttention, core_attention},
    delta_net::delta_net,
    delta_state::{DeviceDeltaNet, DeviceDraft, DeviceHeads, commit},
    experts::{expert_outputs, grouped_linear, prepack_stack},
    floats::place_unrounded,
    launch::{placed, take_fallbacks, zeros},
    linear::{check_token_ids, prepack, project, rows},
    matrix::DeviceMatrix,
    mlp::{feed_forward, gated},
    moe::{combine_experts, route},
    norm::rms_norm,
    open::open,
    residual::{add, add_gated_norm, add_projected},
    softcap::softcap,
};
pub use self::{
    open::{KernelOptions, kernel_logs, set_kernel_options},
    persistent::allow_persistent_kernel,
    products::allow_warpgroups,
    sample::{AllowedTokens, TokenDraw, TokenList, sample_tokens},
};
pub(crate) use super::cpu::{
    attend_both_ways, attend_together, gated_delta, gelu, layer_norm, quantize, top_k,
};
