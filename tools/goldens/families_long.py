"""Goldens with prompts of 600 to 2,000 tokens, which cross what short prompts do not: the attention kernels' blocks of 256
keys, windows that slide while tokens are decoded, RoPE far beyond the length it was trained for.

Heads are as large as real ones here. A prompt of 740 tokens, decoded on, fills a buffer of 768 keys, one of 1,000 a buffer
of 1,024: there windows of up to 256 and 512 keys slide.
"""

from families import GEMMA4_E, GEMMA4_FOR_TEXT, GEMMA4_MOE, GOLDENS, add, merged

SLIDES, SLIDES_LATER, FAR = 740, 1000, 2000


def long(name, base, lengths, changes=None, **rest):
    config = base if isinstance(base, dict) else GOLDENS[base]["config"]
    add(f"{name}-long", merged(config, changes or {}), seed=1, dtype="BF16", shards=1, lengths=lengths,
        positions=(255, 256, 767, 1792), **rest)


def scaled(name, **changes):
    """The base's RoPE, scaled from a trained length that the prompts go beyond."""
    config = GOLDENS[name]["config"]
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"
    return {key: dict(config[key], **changes), "max_position_embeddings": 4096}


long("llama", "llama-a", (SLIDES, FAR), dict(scaled("llama-a", original_max_position_embeddings=256), head_dim=64))
long("ministral3", "ministral3-a", (600, FAR),
     dict(scaled("ministral3-a", original_max_position_embeddings=256), head_dim=128, num_attention_heads=2,
          num_key_value_heads=1))
long("mistral", "mistral-a", (SLIDES, 1500), dict(sliding_window=256, head_dim=128, num_attention_heads=2,
                                                  num_key_value_heads=1))
long("qwen2", "qwen2-odd", (FAR,), dict(scaled("qwen2-odd", original_max_position_embeddings=512)))
long("qwen3", "qwen3-odd", (FAR,), dict(scaled("qwen3-odd", original_max_position_embeddings=512), head_dim=128))
long("qwen3_moe", "qwen3_moe-a", (800,), dict(head_dim=64))
long("qwen3_next", "qwen3_next-a", (800,), dict(head_dim=64, linear_key_head_dim=64))
long("qwen3_5", "qwen3_5_text-a", (600, FAR), dict(head_dim=64, linear_value_head_dim=64, rope_parameters=dict(
    GOLDENS["qwen3_5_text-a"]["config"]["rope_parameters"], mrope_section=[4, 2, 2])))
long("gemma2", "gemma2-a", (SLIDES,), dict(sliding_window=256, head_dim=64, query_pre_attn_scalar=64))
long("gemma3_text", "gemma3_text-a", (SLIDES_LATER,),
     dict(sliding_window=512, head_dim=128, query_pre_attn_scalar=128, num_attention_heads=2,
          rope_scaling=dict(factor=8.0, rope_type="linear")))
long("gemma4_e", merged(GEMMA4_FOR_TEXT, GEMMA4_E), (840, 600), dict(sliding_window=128, head_dim=64,
                                                                      global_head_dim=128))
long("gemma4_moe", merged(GEMMA4_FOR_TEXT, GEMMA4_MOE), (SLIDES_LATER,), dict(sliding_window=512, head_dim=64))
long("glm4", "glm4-a", (700,), dict(head_dim=64))
long("glm4_moe", "glm4_moe-a", (700,), dict(head_dim=64))
long("deepseek_v3", "deepseek_v3-a", (600, 1500), scaled("deepseek_v3-a", original_max_position_embeddings=256))
long("kimi_linear", "kimi_linear-a", (SLIDES_LATER,))
long("lfm2", "lfm2-a", (900,))
long("gpt_oss", "gpt_oss_mxfp4-a", (SLIDES, FAR),
     dict(scaled("gpt_oss_mxfp4-a", original_max_position_embeddings=256), sliding_window=128, head_dim=64))
