"""Goldens of quantised checkpoints, in every mode and width of MLX, and of the old Qwen3.5 folders that tests name.

mlx-lm is the reference, so nothing here relies on what it computes otherwise than transformers: windows of Mistral
and Gemma 2, truncate=false in gpt-oss's YaRN.
"""

from families import GOLDENS, PLAIN, QWEN3_5, QWEN3_5_TEXT, WINDOWED, add, merged


def quantized(name, base, mode, bits, group, changes=None, lengths=PLAIN, **rest):
    config = merged(GOLDENS[base]["config"], changes or {})
    options = dict(dtype="BF16", shards=1, seed=1, lengths=lengths, mode=mode, bits=bits, group=group) | rest
    add(name, config, **options)


def affine(bits, group):
    return dict(bits=bits, group_size=group)


# Every width in every group size: layer by layer another width, projection by projection another group.
WIDTHS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
               "mlp.up_proj", "mlp.down_proj")
MIXED = {f"model.layers.{i}.{projection}": affine(bits, GROUPS[(i + j) % 3])
         for i, bits in enumerate(WIDTHS) for j, projection in enumerate(PROJECTIONS)}
MIXED |= {"model.embed_tokens": affine(6, 128), "model.layers.2.mlp.down_proj": False}
WIDE = dict(hidden_size=128, num_hidden_layers=6, head_dim=32, intermediate_size=128)

quantized("qwen3-mlx-mixed", "qwen3-a", "affine", 4, 64, WIDE, overrides=MIXED,
          listed_false=["model.layers.2.mlp.down_proj"])
# the same, untied and float32, with an uninformative map: shapes decide
quantized("qwen3-mlx-unlisted", "qwen3-b", "affine", 4, 64, dict(WIDE, tie_word_embeddings=False), dtype="F32",
          overrides=MIXED, unlisted=[path for path, how in MIXED.items() if how], shards=2)

LLAMA = dict(hidden_size=64, intermediate_size=128)
quantized("llama-mlx-mxfp4", "llama-a", "mxfp4", 4, 32, LLAMA)
quantized("llama-mlx-mxfp8", "llama-b", "mxfp8", 8, 32, LLAMA, dtype="F16")
quantized("llama-mlx-nvfp4", "llama-a", "nvfp4", 4, 16, LLAMA)

quantized("qwen3_moe-mlx-4bit", "qwen3_moe-a", "affine", 4, 32,
          overrides={f"model.layers.{i}.mlp.gate": affine(8, 64) for i in range(3)})
quantized("qwen3_5_moe-mlx-nvfp4", "qwen3_5_moe-a", "nvfp4", 4, 16)
quantized("deepseek_v3-mlx-4bit", "deepseek_v3-a", "affine", 4, 32,
          dict(q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32, qk_rope_head_dim=16))
quantized("kimi_linear-mlx-4bit", "kimi_linear-a", "affine", 4, 32,
          dict(kv_lora_rank=64, qk_nope_head_dim=32, v_head_dim=32))
quantized("glm4_moe-mlx-4bit", "glm4_moe-a", "affine", 4, 32)
quantized("lfm2-mlx-8bit", "lfm2-a", "affine", 8, 64)
quantized("gemma3_text-mlx-4bit", "gemma3_text-a", "affine", 4, 64, lengths=WINDOWED)
# as mlx-community has it: published experts kept, the rest in eight bits
YARN = dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=64, rope_type="yarn")
quantized("gpt_oss-mlx-mxfp4", "gpt_oss_mxfp4-a", "affine", 8, 64, dict(rope_scaling=YARN), lengths=WINDOWED)

# Names that tests use
TEXT = dict(QWEN3_5_TEXT, vocab_size=320, hidden_size=128, intermediate_size=192)
add("qwen3_5-hub", merged(QWEN3_5, dict(
    text_config=TEXT, vision_config=dict(QWEN3_5["vision_config"], out_hidden_size=128))), seed=1, dtype="BF16",
    shards=1, lengths=PLAIN)
add("qwen3_5-text-sharded", dict(
    GOLDENS["qwen3_5_text-a"]["config"], vocab_size=320, hidden_size=128, tie_word_embeddings=False,
    num_hidden_layers=5, layer_types=["linear_attention"] * 3 + ["full_attention", "linear_attention"],
    linear_num_value_heads=6, linear_key_head_dim=16), seed=1, dtype="F16", shards=2, lengths=PLAIN)
quantized("qwen3_5-mlx-4bit", "qwen3_5-hub", "affine", 4, 64, overrides={
    "language_model.model.embed_tokens": affine(8, 32),
    "language_model.model.layers.1.mlp.gate_proj": False},
    listed_false=["language_model.model.layers.1.mlp.gate_proj"])
quantized("qwen3_5-mlx-mixed", "qwen3_5-hub", "affine", 5, 64,
          dict(tie_word_embeddings=False,
               vision_config=dict(QWEN3_5["vision_config"], out_hidden_size=256),
               text_config=dict(hidden_size=256, intermediate_size=256, tie_word_embeddings=False)),
          dtype="F32", overrides={
              "language_model.model.embed_tokens": affine(3, 128),
              "language_model.model.layers.0.linear_attn.in_proj_qkv": affine(2, 32),
              "language_model.model.layers.1.mlp.up_proj": affine(3, 64),
              "language_model.model.layers.2.mlp.down_proj": affine(6, 128),
              "language_model.model.layers.3.self_attn.q_proj": affine(8, 128),
              "language_model.lm_head": affine(6, 32)})
