"""The goldens: for every family two plain checkpoints (NAME-a, NAME-b) and an unusual one (NAME-odd).

Configs are in the layout of their publisher, with sizes made small, windows and RoPE lengths made so short that a
prompt of 100 tokens goes beyond them.
"""

PLAIN = (5, 100)
WINDOWED = (5, 40, 100)
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}

GOLDENS = {}


def family(name, config, b=None, odd=None, lengths=PLAIN, **rest):
    """Three goldens of one config: `b` and `odd` are its changes; the three are stored differently."""
    add(f"{name}-a", config, seed=1, dtype="BF16", shards=1, lengths=lengths, **rest)
    add(f"{name}-b", merged(config, b or {}), seed=101, dtype="F16", shards=2, lengths=lengths, **rest)
    add(f"{name}-odd", merged(config, odd), seed=201, dtype="F32", shards=1, lengths=lengths, **rest)


def add(name, config, **rest):
    GOLDENS[name] = dict(config=with_dtype(config, TORCH_NAMES[rest["dtype"]]), **rest)


def with_dtype(config, dtype):
    return {key: with_dtype(value, dtype) if key == "text_config" else
            dtype if key in ("dtype", "torch_dtype") else value for key, value in config.items()}


def merged(config, changes):
    """`changes` over `config`; a dict inside text_config too; a value of `...` removes the key."""
    out = dict(config)
    for key, value in changes.items():
        if value is ...:
            out.pop(key)
        elif key == "text_config":
            out[key] = merged(config[key], value)
        else:
            out[key] = value
    return out


COMMON = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, intermediate_size=128,
    vocab_size=256, hidden_act="silu", rms_norm_eps=1e-6, initializer_range=0.02, attention_dropout=0.0,
    bos_token_id=1, eos_token_id=2, use_cache=True, torch_dtype="bfloat16", transformers_version="4.57.0",
    tie_word_embeddings=False)

family("llama", dict(
    COMMON, architectures=["LlamaForCausalLM"], model_type="llama", head_dim=16, rms_norm_eps=1e-5,
    attention_bias=False, mlp_bias=False, max_position_embeddings=512, pretraining_tp=1, rope_theta=500000.0,
    rope_scaling=dict(factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_max_position_embeddings=64,
                      rope_type="llama3"),
    tie_word_embeddings=True, eos_token_id=[2, 0]),
    b=dict(tie_word_embeddings=False, rope_scaling=None, head_dim=..., eos_token_id=2),
    odd=dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=3, head_dim=20, num_hidden_layers=5,
             attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
             rope_scaling=dict(type="linear", factor=4.0)))

family("qwen2", dict(
    COMMON, architectures=["Qwen2ForCausalLM"], model_type="qwen2", max_position_embeddings=32768,
    max_window_layers=3, rope_theta=1000000.0, sliding_window=32768, use_sliding_window=False,
    tie_word_embeddings=True),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=False,
             # given, yet switched off: no window
             sliding_window=16, max_window_layers=1,
             rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32),
             max_position_embeddings=160))

family("qwen3", dict(
    COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32, attention_bias=False,
    max_position_embeddings=40960, max_window_layers=3, rope_scaling=None, rope_theta=1000000, sliding_window=None,
    use_sliding_window=False, tie_word_embeddings=True),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20, num_hidden_layers=5,
             tie_word_embeddings=False, max_position_embeddings=160,
             rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)))

family("qwen3_moe", dict(
    COMMON, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", head_dim=32, moe_intermediate_size=32,
    num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
    attention_bias=False, max_position_embeddings=40960, max_window_layers=3, rope_scaling=None,
    rope_theta=1000000.0, sliding_window=None, use_sliding_window=False, output_router_logits=False,
    router_aux_loss_coef=0.001),
    # layers 1 and 3 would have experts; the config excludes layer 1
    odd=dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=3, head_dim=20, num_hidden_layers=5,
             num_experts=5, num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[1],
             tie_word_embeddings=True))

family("mistral", dict(
    COMMON, architectures=["MistralForCausalLM"], model_type="mistral", head_dim=32, rms_norm_eps=1e-5,
    max_position_embeddings=32768, rope_theta=1000000.0, sliding_window=None),
    # without head_dim, as version 0.1
    b=dict(head_dim=..., rope_theta=10000.0, sliding_window=32),
    odd=dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=2, head_dim=20, sliding_window=16,
             num_hidden_layers=5, tie_word_embeddings=True),
    lengths=WINDOWED)

family("qwen3_next", dict(
    COMMON, architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next",
    num_hidden_layers=4, head_dim=32, num_attention_heads=2, num_key_value_heads=1, moe_intermediate_size=32,
    shared_expert_intermediate_size=32, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
    decoder_sparse_step=1, mlp_only_layers=[], full_attention_interval=4, linear_conv_kernel_dim=4,
    linear_key_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=32,
    partial_rotary_factor=0.25, rope_theta=10000000, rope_scaling=None, max_position_embeddings=262144,
    output_router_logits=False, router_aux_loss_coef=0.001, use_sliding_window=False),
    # layers 1 and 3 would have experts; the config excludes layer 1
    odd=dict(hidden_size=72, num_hidden_layers=5, head_dim=20, num_attention_heads=3, num_key_value_heads=1,
             partial_rotary_factor=0.5, linear_key_head_dim=16, linear_value_head_dim=24, linear_num_value_heads=6,
             full_attention_interval=2, num_experts=5, num_experts_per_tok=3, decoder_sparse_step=2,
             mlp_only_layers=[1], norm_topk_prob=False, tie_word_embeddings=True),
    mtp="split")

QWEN3_5_TEXT = dict(
    attention_bias=False, attention_dropout=0.0, attn_output_gate=True, dtype="bfloat16", eos_token_id=2,
    full_attention_interval=4, head_dim=32, hidden_act="silu", hidden_size=64, initializer_range=0.02,
    intermediate_size=96, layer_types=["linear_attention"] * 3 + ["full_attention"], linear_conv_kernel_dim=4,
    linear_key_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=32,
    mamba_ssm_dtype="float32", max_position_embeddings=262144, mlp_only_layers=[], model_type="qwen3_5_text",
    mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, num_attention_heads=4, num_hidden_layers=4,
    num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=True, use_cache=True, vocab_size=256,
    rope_parameters=dict(mrope_interleaved=True, mrope_section=[2, 1, 1], rope_type="default", rope_theta=10000000,
                         partial_rotary_factor=0.25))

# 27B has three value heads to a key head
QWEN3_5_ODD = dict(
    hidden_size=72, num_hidden_layers=5, num_attention_heads=3, num_key_value_heads=1, head_dim=24,
    layer_types=["linear_attention", "full_attention"] * 2 + ["linear_attention"], full_attention_interval=2,
    linear_key_head_dim=16, linear_value_head_dim=24, linear_num_value_heads=6,
    rope_parameters=dict(mrope_interleaved=True, mrope_section=[2, 2, 2], rope_type="default", rope_theta=10000,
                         partial_rotary_factor=0.5))

QWEN3_5 = dict(
    architectures=["Qwen3_5ForConditionalGeneration"], image_token_id=252, model_type="qwen3_5",
    text_config=QWEN3_5_TEXT, tie_word_embeddings=True, transformers_version="4.57.0.dev0", video_token_id=253,
    vision_config=dict(
        deepstack_visual_indexes=[], depth=1, hidden_act="gelu_pytorch_tanh", hidden_size=32, in_channels=3,
        initializer_range=0.02, intermediate_size=48, model_type="qwen3_5", num_heads=2, num_position_embeddings=36,
        out_hidden_size=64, patch_size=4, spatial_merge_size=2, temporal_patch_size=2),
    vision_end_token_id=254, vision_start_token_id=251)

family("qwen3_5", QWEN3_5,
       b=dict(tie_word_embeddings=False, text_config=dict(tie_word_embeddings=False, output_gate_type="swish")),
       odd=dict(tie_word_embeddings=False, text_config=dict(QWEN3_5_ODD, tie_word_embeddings=False),
                vision_config=dict(QWEN3_5["vision_config"], out_hidden_size=72)),
       mtp="fused")

family("qwen3_5_text", dict(QWEN3_5_TEXT, architectures=["Qwen3_5ForCausalLM"], transformers_version="5.2.0"),
       b=dict(tie_word_embeddings=False),
       odd=dict(QWEN3_5_ODD, tie_word_embeddings=False))

QWEN3_5_MOE = merged(QWEN3_5, dict(
    architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", tie_word_embeddings=False,
    vision_config=dict(QWEN3_5["vision_config"], model_type="qwen3_5_moe"),
    text_config=dict(
        model_type="qwen3_5_moe_text", num_attention_heads=2, num_key_value_heads=1, moe_intermediate_size=32,
        num_experts=6, num_experts_per_tok=2, output_router_logits=False, router_aux_loss_coef=0.001,
        shared_expert_intermediate_size=32, tie_word_embeddings=..., intermediate_size=...)))

# The experts of the head are published one by one (35B) and fused
family("qwen3_5_moe", QWEN3_5_MOE, b=dict(text_config=dict(output_gate_type="swish")), mtp="split",
       odd=dict(text_config=dict(QWEN3_5_ODD, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24,
                                 shared_expert_intermediate_size=40),
                vision_config=dict(QWEN3_5_MOE["vision_config"], out_hidden_size=72)))
GOLDENS["qwen3_5_moe-b"]["mtp"] = "fused"
GOLDENS["qwen3_5_moe-odd"] |= dict(mtp=None, split_experts=True)

family("ministral3", dict(
    COMMON, architectures=["Ministral3ForCausalLM"], model_type="ministral3",
    head_dim=16, rms_norm_eps=1e-5, max_position_embeddings=1024, sliding_window=None, tie_word_embeddings=True,
    rope_parameters=dict(
        type="yarn", rope_type="yarn", rope_theta=1000000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.1, original_max_position_embeddings=64)),
    b=dict(tie_word_embeddings=False),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20, num_hidden_layers=5,
             tie_word_embeddings=False,
             rope_parameters=dict(
                 type="yarn", rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=4.0, beta_slow=1.0,
                 mscale=1.0, mscale_all_dim=0.0, llama_4_scaling_beta=0.3, original_max_position_embeddings=16)))

add("mistral3", dict(
    architectures=["Mistral3ForConditionalGeneration"], dtype="bfloat16", image_token_index=252, model_type="mistral3",
    multimodal_projector_bias=False, projector_hidden_act="gelu", spatial_merge_size=2,
    text_config=merged(GOLDENS["ministral3-a"]["config"], dict(architectures=..., transformers_version=...)),
    tie_word_embeddings=True, transformers_version="5.0.0.dev0", vision_feature_layer=-1,
    vision_config=dict(
        attention_dropout=0.0, head_dim=16, hidden_act="silu", hidden_size=32, image_size=56, initializer_range=0.02,
        intermediate_size=48, model_type="pixtral", num_attention_heads=2, num_channels=3, num_hidden_layers=1,
        patch_size=14, rope_parameters=dict(rope_theta=10000.0, rope_type="default"))),
    seed=1, dtype="BF16", shards=1, lengths=PLAIN)

GEMMA = dict(
    hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=4, intermediate_size=128,
    vocab_size=256, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, initializer_range=0.02,
    attention_bias=False, attention_dropout=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=0, use_cache=True,
    torch_dtype="bfloat16", transformers_version="4.50.0.dev0")

family("gemma2", dict(
    GEMMA, architectures=["Gemma2ForCausalLM"], model_type="gemma2", head_dim=16, hidden_act="gelu_pytorch_tanh",
    attn_logit_softcapping=50.0, final_logit_softcapping=30.0, query_pre_attn_scalar=16, max_position_embeddings=8192,
    rope_theta=10000.0, sliding_window=16, cache_implementation="hybrid"),
    b=dict(sliding_window=32, attn_logit_softcapping=5.0),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20, query_pre_attn_scalar=24,
             num_hidden_layers=5, final_logit_softcapping=8.0),
    lengths=WINDOWED)

family("gemma3_text", dict(
    GEMMA, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", head_dim=32, num_key_value_heads=1,
    attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=32,
    max_position_embeddings=32768, rope_local_base_freq=10000, rope_scaling=None, rope_theta=1000000,
    sliding_window=16, sliding_window_pattern=2, cache_implementation="hybrid", eos_token_id=[2, 0]),
    # newer uploads list the layers
    b=dict(sliding_window_pattern=..., sliding_window=32,
           layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"]),
    odd=dict(hidden_size=72, num_attention_heads=3, head_dim=20, query_pre_attn_scalar=24, num_hidden_layers=5,
             sliding_window_pattern=3, rope_scaling=dict(factor=8.0, rope_type="linear")),
    lengths=WINDOWED)

# 4B has few keys and relies on defaults: 8 heads, 4 key heads, scale 256, every sixth layer full, rope 1e6 and 1e4
GEMMA3 = dict(
    architectures=["Gemma3ForConditionalGeneration"], boi_token_index=251, eoi_token_index=254, eos_token_id=[2, 0],
    image_token_index=252, initializer_range=0.02, mm_tokens_per_image=4, model_type="gemma3",
    text_config=dict(
        hidden_size=64, intermediate_size=128, model_type="gemma3_text", num_hidden_layers=6, head_dim=16,
        rope_scaling=dict(factor=8.0, rope_type="linear"), sliding_window=16, vocab_size=256),
    torch_dtype="bfloat16", transformers_version="4.50.0.dev0",
    vision_config=dict(hidden_size=32, image_size=16, intermediate_size=48, model_type="siglip_vision_model",
                       num_attention_heads=2, num_hidden_layers=1, patch_size=4, vision_use_head=False))
GEMMA3_FULL = merged(GOLDENS["gemma3_text-b"]["config"], dict(
    architectures=..., transformers_version=..., cache_implementation=...,
    rope_scaling=dict(factor=8.0, rope_type="linear")))

family("gemma3", GEMMA3,
       b=dict(text_config=GEMMA3_FULL),
       odd=dict(text_config=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20,
                                 query_pre_attn_scalar=24, num_hidden_layers=5, rope_theta=500000)),
       lengths=WINDOWED)

GEMMA4_TEXT = dict(
    attention_bias=False, attention_dropout=0.0, attention_k_eq_v=False, bos_token_id=1, dtype="bfloat16",
    enable_moe_block=False, eos_token_id=2, expert_intermediate_size=None, final_logit_softcapping=30.0,
    global_head_dim=32, head_dim=16, hidden_activation="gelu_pytorch_tanh", hidden_size=64,
    hidden_size_per_layer_input=0, initializer_range=0.02, intermediate_size=96,
    layer_types=["sliding_attention"] * 3 + ["full_attention"], max_position_embeddings=131072,
    model_type="gemma4_text", num_attention_heads=4, num_experts=None, num_global_key_value_heads=None,
    num_hidden_layers=4, num_key_value_heads=2, num_kv_shared_layers=0, pad_token_id=0, rms_norm_eps=1e-6,
    rope_parameters=dict(
        full_attention=dict(partial_rotary_factor=0.25, rope_theta=1000000.0, rope_type="proportional"),
        sliding_attention=dict(rope_theta=10000.0, rope_type="default")),
    sliding_window=16, tie_word_embeddings=True, top_k_experts=None, use_bidirectional_attention=None,
    use_cache=True, use_double_wide_mlp=False, vocab_size=256, vocab_size_per_layer_input=256)

# E2B: an embedding for every layer, the last layers share keys and values and have a wider MLP
GEMMA4_E = dict(
    hidden_size_per_layer_input=16, num_kv_shared_layers=2, num_hidden_layers=6, num_key_value_heads=1,
    layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
                 "sliding_attention", "full_attention"], use_double_wide_mlp=True)
# 31B: the values are the keys in full layers
GEMMA4_DENSE = dict(attention_k_eq_v=True, num_global_key_value_heads=1)
# 26B-A4B
GEMMA4_MOE = dict(GEMMA4_DENSE, enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=32)
GEMMA4_ODD = dict(
    hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20, global_head_dim=24,
    num_hidden_layers=5, layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"])

GEMMA4_FOR_TEXT = dict(GEMMA4_TEXT, architectures=["Gemma4ForCausalLM"])
family("gemma4_e", merged(GEMMA4_FOR_TEXT, GEMMA4_E), b=dict(num_kv_shared_layers=1, sliding_window=32),
       odd=dict(GEMMA4_ODD, num_kv_shared_layers=1, use_double_wide_mlp=False, hidden_size_per_layer_input=12),
       lengths=WINDOWED)
family("gemma4_dense", merged(GEMMA4_FOR_TEXT, GEMMA4_DENSE),
       odd=dict(GEMMA4_ODD, num_attention_heads=6, num_key_value_heads=3, num_global_key_value_heads=2,
                final_logit_softcapping=None),
       lengths=WINDOWED)
family("gemma4_moe", merged(GEMMA4_FOR_TEXT, GEMMA4_MOE),
       odd=dict(GEMMA4_ODD, num_experts=5, top_k_experts=3, attention_k_eq_v=False, moe_intermediate_size=24),
       lengths=WINDOWED)

GEMMA4 = dict(
    architectures=["Gemma4ForConditionalGeneration"], audio_config=None, audio_token_id=255, boa_token_id=250,
    boi_token_id=251, dtype="bfloat16", eoa_token_id=250, eoi_token_id=254, eos_token_id=[2, 0], image_token_id=252,
    initializer_range=0.02, model_type="gemma4", text_config=GEMMA4_TEXT, tie_word_embeddings=True,
    transformers_version="5.5.0.dev0", video_token_id=253,
    vision_config=dict(
        default_output_length=4, head_dim=16, global_head_dim=16, hidden_activation="gelu_pytorch_tanh",
        hidden_size=32, intermediate_size=48, model_type="gemma4_vision", num_attention_heads=2, num_hidden_layers=1,
        num_key_value_heads=2, patch_size=4, pooling_kernel_size=2, position_embedding_size=64))
family("gemma4", merged(GEMMA4, dict(text_config=GEMMA4_E)),
       b=dict(text_config=dict(GEMMA4_TEXT, **GEMMA4_MOE, use_bidirectional_attention="vision")),
       odd=dict(text_config=dict(GEMMA4_ODD, num_kv_shared_layers=1)),
       lengths=WINDOWED)

family("glm4", dict(
    COMMON, architectures=["Glm4ForCausalLM"], model_type="glm4", head_dim=16, rms_norm_eps=1e-5,
    attention_bias=True, max_position_embeddings=32768, partial_rotary_factor=0.5, rope_theta=10000.0,
    pad_token_id=0, eos_token_id=[2, 0]),
    odd=dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=3, head_dim=20, num_hidden_layers=5,
             attention_bias=False, tie_word_embeddings=True))

family("glm4_moe", dict(
    COMMON, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", head_dim=32, intermediate_size=96,
    moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
    first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.0, use_qk_norm=True, attention_bias=True,
    rms_norm_eps=1e-5, max_position_embeddings=131072, num_nextn_predict_layers=1, partial_rotary_factor=0.5,
    rope_scaling=None, rope_theta=1000000, pad_token_id=0, eos_token_id=[2, 0]),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20, use_qk_norm=False,
             n_group=2, n_routed_experts=6, topk_group=1, first_k_dense_replace=2, n_shared_experts=2,
             attention_bias=False, norm_topk_prob=False, routed_scaling_factor=2.5, moe_intermediate_size=24,
             num_hidden_layers=4, tie_word_embeddings=True),
    mtp="nextn")

# Latent attention
MLA = dict(q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
           attention_bias=False, num_key_value_heads=4, intermediate_size=96)
EXPERTS = dict(moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
               first_k_dense_replace=1, norm_topk_prob=True, topk_method="noaux_tc")
MLA_ODD = dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=24, qk_nope_head_dim=20,
               qk_rope_head_dim=12, v_head_dim=28, num_hidden_layers=4)

# GLM-4.7-Flash
family("glm4_moe_lite", merged(COMMON, dict(
    EXPERTS, **MLA, architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", n_group=1, topk_group=1,
    routed_scaling_factor=1.8, rms_norm_eps=1e-5, max_position_embeddings=202752, num_nextn_predict_layers=1,
    partial_rotary_factor=1.0, rope_scaling=None, rope_theta=1000000, pad_token_id=0, eos_token_id=[2, 0])),
    odd=dict(MLA_ODD, q_lora_rank=None, n_shared_experts=2, norm_topk_prob=False, n_routed_experts=6, n_group=2),
    mtp="nextn")

family("lfm2", dict(
    architectures=["Lfm2ForCausalLM"], model_type="lfm2", block_auto_adjust_ff_dim=True, block_dim=64,
    block_ff_dim=192, block_ffn_dim_multiplier=1.0, block_mlp_init_scale=1.0, block_multiple_of=32,
    block_norm_eps=1e-5, block_out_init_scale=1.0, block_use_swiglu=True, block_use_xavier_init=True, bos_token_id=1,
    conv_L_cache=3, conv_bias=False, conv_dim=64, conv_dim_out=64, conv_use_xavier_init=True, eos_token_id=2,
    full_attn_idxs=[2], hidden_size=64, initializer_range=0.02, max_position_embeddings=128000, norm_eps=1e-5,
    num_attention_heads=4, num_heads=4, num_hidden_layers=4, num_key_value_heads=2, pad_token_id=0,
    rope_theta=1000000.0, torch_dtype="bfloat16", transformers_version="4.54.0.dev0", use_cache=True,
    use_pos_enc=True, vocab_size=256),
    # newer uploads list the layers
    b=dict(full_attn_idxs=..., layer_types=["conv", "full_attention", "conv", "full_attention"], tie_embedding=True),
    odd=dict(hidden_size=72, block_dim=72, conv_dim=72, conv_dim_out=72, num_attention_heads=6, num_heads=6,
             num_key_value_heads=3, num_hidden_layers=5, full_attn_idxs=[1, 4], block_auto_adjust_ff_dim=False,
             block_ff_dim=104, conv_bias=True, conv_L_cache=4, rope_theta=10000.0))

family("lfm2_moe", dict(
    architectures=["Lfm2MoeForCausalLM"], model_type="lfm2_moe", bos_token_id=1, conv_L_cache=3, conv_bias=False,
    eos_token_id=2, hidden_size=64, initializer_range=0.02, intermediate_size=128,
    layer_types=["conv", "conv", "full_attention", "conv"], max_position_embeddings=128000, moe_intermediate_size=32,
    norm_eps=1e-5, norm_topk_prob=True, num_attention_heads=4, num_dense_layers=1, num_experts=8,
    num_experts_per_tok=2, num_hidden_layers=4, num_key_value_heads=2, pad_token_id=0, rope_theta=1000000.0,
    routed_scaling_factor=1.0, tie_embedding=True, torch_dtype="bfloat16", transformers_version="4.56.0.dev0",
    use_cache=True, use_expert_bias=True, vocab_size=256),
    odd=dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=3, num_hidden_layers=5, num_dense_layers=2,
             layer_types=["conv", "full_attention", "conv", "conv", "full_attention"], use_expert_bias=False,
             norm_topk_prob=False, routed_scaling_factor=1.5, num_experts=5, num_experts_per_tok=3))

DEEPSEEK = merged(COMMON, dict(
    EXPERTS, **MLA, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", n_group=4, topk_group=2,
    moe_layer_freq=1, scoring_func="sigmoid", routed_scaling_factor=2.5, max_position_embeddings=163840,
    num_nextn_predict_layers=1, rope_theta=10000, ep_size=1, aux_loss_alpha=0.001, seq_aux=True, pretraining_tp=1,
    rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0,
                      original_max_position_embeddings=64)))
family("deepseek_v3", DEEPSEEK,
       # mscale unlike mscale_all_dim, as in version 2
       b=dict(rope_scaling=dict(DEEPSEEK["rope_scaling"], mscale=1.0, mscale_all_dim=0.7, beta_fast=4)),
       odd=dict(MLA_ODD, q_lora_rank=None, n_group=1, topk_group=1, n_routed_experts=6, n_shared_experts=2,
                norm_topk_prob=False, first_k_dense_replace=2, rope_scaling=None, tie_word_embeddings=True),
       mtp="nextn")

# The files say kimi_k2, the code is DeepSeek-V3's
family("kimi_k2", merged(DEEPSEEK, dict(
    model_type="kimi_k2", n_group=1, topk_group=1, routed_scaling_factor=2.827, rope_theta=50000.0,
    num_nextn_predict_layers=0, max_position_embeddings=131072,
    rope_scaling=dict(type="yarn", factor=32.0, beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                      original_max_position_embeddings=64))),
    b=dict(rms_norm_eps=1e-5, rope_scaling=dict(DEEPSEEK["rope_scaling"], factor=64.0, beta_fast=32.0)),
    odd=dict(MLA_ODD, n_routed_experts=5, num_experts_per_tok=3, moe_intermediate_size=24, q_lora_rank=20,
             rope_scaling=dict(DEEPSEEK["rope_scaling"], factor=4.0, beta_fast=8.0, mscale=0.5)))

family("kimi_linear", merged(COMMON, dict(
    architectures=["KimiLinearForCausalLM"], model_type="kimi_linear", num_hidden_layers=4, num_key_value_heads=4,
    head_dim=16, intermediate_size=96, moe_intermediate_size=32, num_experts=8, num_experts_per_token=2,
    num_shared_experts=1, num_expert_group=1, topk_group=1, first_k_dense_replace=1, moe_layer_freq=1,
    moe_renormalize=True, moe_router_activation_func="sigmoid", routed_scaling_factor=2.446, use_grouped_topk=True,
    kv_lora_rank=32, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, mla_use_nope=True,
    rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000.0, model_max_length=1048576, num_nextn_predict_layers=0,
    linear_attn_config=dict(full_attn_layers=[4], head_dim=32, kda_layers=[1, 2, 3], num_heads=4,
                            short_conv_kernel_size=4),
    pad_token_id=0)),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=3, head_dim=24, num_hidden_layers=5,
             kv_lora_rank=24, qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=28, first_k_dense_replace=2,
             num_experts=6, num_experts_per_token=3, num_shared_experts=2, moe_renormalize=False,
             num_expert_group=2,
             linear_attn_config=dict(full_attn_layers=[2, 5], head_dim=24, kda_layers=[1, 3, 4], num_heads=3,
                                     short_conv_kernel_size=4)))

GPT_OSS = merged(COMMON, dict(
    architectures=["GptOssForCausalLM"], model_type="gpt_oss", num_hidden_layers=4, head_dim=32,
    num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, num_local_experts=5, experts_per_token=2,
    num_experts_per_tok=2, rms_norm_eps=1e-5, attention_bias=True, initial_context_length=64,
    max_position_embeddings=2048, output_router_logits=False, router_aux_loss_coef=0.9, swiglu_limit=7.0,
    rope_theta=150000, sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2, pad_token_id=0,
    rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=64,
                      rope_type="yarn", truncate=False)))
GPT_OSS_ODD = dict(
    hidden_size=96, num_attention_heads=3, num_key_value_heads=1, head_dim=24, num_hidden_layers=5,
    layer_types=["full_attention", "sliding_attention"] * 2 + ["sliding_attention"], num_local_experts=3,
    experts_per_token=2, num_experts_per_tok=2, swiglu_limit=1.5, intermediate_size=32, tie_word_embeddings=True)
family("gpt_oss", GPT_OSS, odd=GPT_OSS_ODD, lengths=WINDOWED)
# as published: the experts in MXFP4
family("gpt_oss_mxfp4", dict(GPT_OSS, quantization_config=dict(
    modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    quant_method="mxfp4")),
    odd=GPT_OSS_ODD, lengths=WINDOWED)
