#!/usr/bin/env python3
"""Writes the built-in model as a GGUF for llama.cpp, with the same quantised values.

    PYTHON benchmarks/peers/merlin_gguf.py models/merlin merlin.gguf

Needs mlx, numpy and gguf. MLX's affine 4-bit groups of 64 become two blocks of ggml's Q4_1 each, which also stores a scale
and a minimum: no weight is rounded again, except where a scale in bfloat16 is too small for float16. The 8-bit embedding
has no such type and becomes float16. The MTP layer is left out.
"""

import argparse
import json
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np

import write_gguf

PREFIX = "language_model."
GROUP, BLOCK = 64, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())["text_config"]
    writer = gguf.GGUFWriter(args.out, "qwen35")
    write_metadata(writer, config)
    write_tokenizer(writer, args.folder)
    write_tensors(writer, mx.load(str(args.folder / "model.safetensors")), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_metadata(writer, config):
    rope = config["rope_parameters"]
    writer.add_name("merlin")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_quantization_version(2)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])


def write_tokenizer(writer, folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = {index: (text, gguf.TokenType.NORMAL) for text, index in tokenizer["model"]["vocab"].items()}
    for added in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    texts, kinds = zip(*(tokens[index] for index in range(len(tokens))))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    ids = {text: index for index, text in enumerate(texts)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")  # the same expression: digits one by one
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def write_tensors(writer, tensors, config):
    names = [name for name in tensors if not name.startswith(f"{PREFIX}mtp.") and not name.endswith((".scales", ".biases"))]
    for name in names:
        target = write_gguf.rename(name.removeprefix(PREFIX), "qwen35")
        if tensors[name].dtype != mx.uint32:
            writer.add_tensor(target, plain(name, tensors[name], config))
        elif "embed_tokens" in name:
            parts = [tensors[name], *(tensors[name.replace("weight", part)] for part in ("scales", "biases"))]
            parts[1:] = [part.astype(mx.float32) for part in parts[1:]]
            writer.add_tensor(target, np.array(mx.dequantize(*parts, group_size=GROUP, bits=8)).astype(np.float16))
        else:
            scales, biases = (as_numpy(tensors[name.replace("weight", part)]) for part in ("scales", "biases"))
            values, scales, biases = reordered(name, nibbles(np.array(tensors[name])), scales, biases, config)
            writer.add_tensor(target, q4_1(values, scales, biases), raw_dtype=gguf.GGMLQuantizationType.Q4_1)


def plain(name, tensor, config):
    values = as_numpy(tensor)
    if name.endswith("A_log"):
        values = -np.exp(values)
    if name.endswith(("A_log", "dt_bias")):
        values = values[value_heads(config)]
    if "conv1d" in name:
        values = values.squeeze()
        keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = np.concatenate([values[:keys], values[keys:][rows(config)]])
    return values


def reordered(name, values, scales, biases, config):
    """llama.cpp repeats key heads in another order than MLX, so value heads change places."""
    if "linear_attn" not in name:
        return values, scales, biases
    if "out_proj" in name:  # columns; a head is as wide as a group
        heads = value_heads(config)
        return values[:, rows(config)], scales[:, heads], biases[:, heads]
    if "in_proj_qkv" in name:
        keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        order = np.concatenate([np.arange(keys), keys + rows(config)])
    elif "in_proj_z" in name:
        order = rows(config)
    else:
        order = value_heads(config)
    return values[order], scales[order], biases[order]


def value_heads(config):
    keys = config["linear_num_key_heads"]
    return np.arange(config["linear_num_value_heads"]).reshape(keys, -1).T.reshape(-1)


def rows(config):
    size = config["linear_value_head_dim"]
    assert size == GROUP
    return (value_heads(config)[:, None] * size + np.arange(size)).reshape(-1)


def nibbles(packed):
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return ((packed[:, :, None] >> shifts) & 15).astype(np.uint8).reshape(packed.shape[0], -1)


def q4_1(values, scales, biases):
    """Blocks of scale, minimum, and 16 bytes with the first half of the values in their low bits."""
    blocks = values.reshape(len(values), -1, 2, BLOCK // 2)
    packed = blocks[:, :, 0] | (blocks[:, :, 1] << 4)
    ends = [np.repeat(part, GROUP // BLOCK, axis=1).astype(np.float16)[:, :, None].view(np.uint8) for part in (scales, biases)]
    return np.concatenate([*ends, packed], axis=2).reshape(len(values), -1)


def as_numpy(tensor):
    return np.array(tensor.astype(mx.float32))


if __name__ == "__main__":
    main()
