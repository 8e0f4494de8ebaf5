"""The goldens: for every family two plain checkpoints (NAME-a, NAME-b) and an awkward one (NAME-odd).

Configs are in the layout of their publisher, with sizes made small, windows and RoPE lengths made so short that a
prompt of 100 tokens goes beyond them.
"""

PLAIN = (5, 100)
WINDOWED = (5, 40, 100)
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}

GOLDENS = {}


def family(name, config, b=None, odd=None, lengths=PLAIN, **rest):
    """Three goldens of one config: `b` and `odd` say what they change; the three are stored differently."""
    add(f"{name}-a", config, seed=1, dtype="BF16", shards=1, lengths=lengths, **rest)
    add(f"{name}-b", merged(config, b or {}), seed=101, dtype="F16", shards=2, lengths=lengths, **rest)
    add(f"{name}-odd", merged(config, odd), seed=201, dtype="F32", shards=1, lengths=lengths, **rest)


def add(name, config, **rest):
    GOLDENS[name] = dict(config=with_dtype(config, TORCH_NAMES[rest["dtype"]]), **rest)


def with_dtype(config, dtype):
    return {key: with_dtype(value, dtype) if key == "text_config" else
            dtype if key in ("dtype", "torch_dtype") else value for key, value in config.items()}


def merged(config, changes):
    """`changes` over `config`; a dict inside text_config too; a value of `...` takes the key away."""
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
             attention_bias=True, mlp_bias=True, tie_word_embeddings=False, rope_scaling=dict(type="linear", factor=4.0)))

family("qwen2", dict(
    COMMON, architectures=["Qwen2ForCausalLM"], model_type="qwen2", max_position_embeddings=32768,
    max_window_layers=3, rope_theta=1000000.0, sliding_window=32768, use_sliding_window=False,
    tie_word_embeddings=True),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=False,
             # given, yet switched off: no window
             sliding_window=16, max_window_layers=1,
             rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32),
             max_position_embeddings=128))

family("qwen3", dict(
    COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32, attention_bias=False,
    max_position_embeddings=40960, max_window_layers=3, rope_scaling=None, rope_theta=1000000, sliding_window=None,
    use_sliding_window=False, tie_word_embeddings=True),
    odd=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20, num_hidden_layers=5,
             tie_word_embeddings=False, max_position_embeddings=128,
             rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)))

family("qwen3_moe", dict(
    COMMON, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", head_dim=32, moe_intermediate_size=32,
    num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
    attention_bias=False, max_position_embeddings=40960, max_window_layers=3, rope_scaling=None,
    rope_theta=1000000.0, sliding_window=None, use_sliding_window=False, output_router_logits=False,
    router_aux_loss_coef=0.001),
    # layers 1 and 3 would have experts, layer 1 is told not to
    odd=dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=3, head_dim=20, num_hidden_layers=5, num_experts=5,
             num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[1],
             tie_word_embeddings=True))

family("mistral", dict(
    COMMON, architectures=["MistralForCausalLM"], model_type="mistral", head_dim=32, rms_norm_eps=1e-5,
    max_position_embeddings=32768, rope_theta=1000000.0, sliding_window=None),
    # without head_dim, as version 0.1
    b=dict(head_dim=..., rope_theta=10000.0, sliding_window=32),
    odd=dict(hidden_size=72, num_attention_heads=6, num_key_value_heads=2, head_dim=20, sliding_window=16, num_hidden_layers=5,
             tie_word_embeddings=True),
    lengths=WINDOWED)
