#!/usr/bin/env python3
"""Writes a GGUF of a shape with random weights, of the types that llama.cpp's quantize chooses for Q4_0.

    python3 benchmarks/peers/write_gguf.py qwen3.5-0.8b model.gguf [--pure]

As `llama-quantize ... Q4_0` does, matrices become Q4_0 and the output matrix (the token embedding, where it is tied) Q6_K;
with --pure that one becomes Q4_0 too. The same shape gives the same bytes. Needs nothing but Python's standard library.
"""

import argparse
import json
import math
import random
import struct
from array import array
from pathlib import Path

import shapes

# ggml's types: number, weights per block, bytes per block.
F32, Q4_0, Q6_K = (0, 1, 4), (2, 32, 18), (14, 256, 210)
ALIGNMENT = 32

# The hub's name of a layer's tensor, and llama.cpp's (src/llama-arch.cpp).
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
}
OUTSIDE = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}


def write(shape, path, pure=False, tokenizer=None):
    """Writes the file and returns the bytes of weights that a decoded token reads.

    `tokenizer` is a folder with a byte-level one, of which the file gets a copy, and a chat template."""
    arch = {"qwen3_5": "qwen35", "llama": "llama"}[shape.config["model_type"]]
    tensors = [(rename(name, arch), dimensions) for name, dimensions in shape.tensors.items()]
    tensors = [(name, squeezed(dimensions), kind_of(name, dimensions, shape.tied, pure)) for name, dimensions in tensors]
    if rope_factors(shape.text):
        tensors.append(("rope_freqs.weight", [len(rope_factors(shape.text))], F32))
    with open(path, "wb") as file:
        file.write(header(metadata(shape, arch) | tokens_of(tokenizer, shape.text["vocab_size"]), tensors))
        for name, dimensions, kind in tensors:
            pad(file)
            for chunk in contents(shape, name, dimensions, kind):
                file.write(chunk)
        pad(file)
    return sum(size(dimensions, kind) for name, dimensions, kind in tensors
               if shape.tied or name != "token_embd.weight")  # an untied embedding gives one row


def rename(name, arch):
    if ".layers." not in name:
        return OUTSIDE[name.removeprefix("model.").removeprefix("language_model.")]
    index, rest = name.split(".layers.")[1].split(".", 1)
    if rest == "post_attention_layernorm.weight":
        return f"blk.{index}." + ("ffn_norm.weight" if arch == "llama" else "post_attention_norm.weight")
    return f"blk.{index}.{LAYER[rest]}"


def kind_of(name, dimensions, tied, pure):
    """llama-quant.cpp's choice for Q4_0: tensor_allows_quantization and llama_tensor_get_type."""
    if len(dimensions) < 2 or "ssm_conv1d" in name:
        return F32
    output = name == ("token_embd.weight" if tied else "output.weight")
    return Q6_K if output and not pure else Q4_0


def metadata(shape, arch):
    c = shape.text
    rope = c.get("rope_parameters", c)
    heads = c["num_attention_heads"]
    head_dim = c.get("head_dim", c["hidden_size"] // heads)
    of_arch = {
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "block_count": c["num_hidden_layers"],
        "feed_forward_length": c["intermediate_size"],
        "vocab_size": c["vocab_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }
    if arch == "qwen35":
        of_arch |= {
            "rope.dimension_sections": rope["mrope_section"] + [0],
            "full_attention_interval": c["full_attention_interval"],
            "ssm.conv_kernel": c["linear_conv_kernel_dim"],
            "ssm.state_size": c["linear_key_head_dim"],
            "ssm.group_count": c["linear_num_key_heads"],
            "ssm.time_step_rank": c["linear_num_value_heads"],
            "ssm.inner_size": c["linear_value_head_dim"] * c["linear_num_value_heads"],
        }
    general = {"general.architecture": arch, "general.name": shape.name, "general.file_type": 2,
               "general.quantization_version": 2}
    return general | {f"{arch}.{key}": value for key, value in of_arch.items()}


def tokens_of(folder, vocab_size):
    """The tokenizer's metadata; ids beyond it are unused tokens."""
    if folder is None:
        return {"tokenizer.ggml.model": "none"}
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    unused = {index: (f"[unused {index}]", 5) for index in range(vocab_size)}
    tokens = unused | {index: (text, 1) for text, index in tokenizer["model"]["vocab"].items()}
    tokens |= {added["id"]: (added["content"], 3 if added["special"] else 4) for added in tokenizer["added_tokens"]}
    texts, kinds = zip(*(tokens[index] for index in range(vocab_size)))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": list(texts),
            "tokenizer.ggml.token_type": list(kinds), "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.eos_token_id": texts.index("<|im_end|>"),
            "tokenizer.chat_template": (folder / "chat_template.jinja").read_text()}


def header(metadata, tensors):
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        out.append(string(key) + typed(value))
    offset = 0
    for name, dimensions, kind in tensors:
        out.append(string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *reversed(dimensions)))
        out.append(struct.pack("<IQ", kind[0], offset))
        offset += -(-size(dimensions, kind) // ALIGNMENT) * ALIGNMENT
    return b"".join(out)


def string(text):
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def typed(value):
    """A metadata value after GGUF's number of its type: u32 4, i32 5, f32 6, bool 7, string 8, array 9."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list) and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    if isinstance(value, list) and isinstance(value[0], float):
        return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return struct.pack("<II", 4, value)


def pad(file):
    file.write(bytes(-file.tell() % ALIGNMENT))


def size(dimensions, kind):
    return math.prod(dimensions) // kind[1] * kind[2]


def squeezed(dimensions):
    return [d for d in dimensions if d != 1]


def contents(shape, name, dimensions, kind):
    """The tensor's bytes, in pieces of a few MiB; each tensor has a seed of its own."""
    if name == "rope_freqs.weight":
        return [array("f", rope_factors(shape.text)).tobytes()]
    rng = random.Random(name)
    if kind is F32:
        return [floats(rng, name, math.prod(dimensions))]
    blocks = math.prod(dimensions) // kind[1]
    fill = q4_0 if kind is Q4_0 else q6_k
    step = 1 << 14
    return (fill(rng, min(step, blocks - start)) for start in range(0, blocks, step))


def floats(rng, name, count):
    low, high = {"ssm_a": (-8.0, -0.5), "ssm_dt.bias": (-2.0, 2.0), "ssm_conv1d.weight": (-0.5, 0.5)}.get(
        name.split(".", 2)[-1], (1.0, 1.0))
    return array("f", (rng.uniform(low, high) for _ in range(count))).tobytes()


def q4_0(rng, blocks):
    """Blocks of a half-precision scale and 32 nibbles. The scale's high byte 0x1c makes it 2^-8 to 1.25 * 2^-8."""
    out = bytearray(rng.randbytes(blocks * 18))
    out[1::18] = b"\x1c" * blocks
    return out


SCALES = bytes(1 + (byte & 15) for byte in range(256))


def q6_k(rng, blocks):
    """Blocks of 128 + 64 bytes of 6-bit weights, 16 scales of 8 bits (here 1 to 16) and a half-precision scale of 2^-13."""
    out = bytearray(rng.randbytes(blocks * 210))
    for scale in range(192, 208):
        out[scale::210] = out[scale::210].translate(SCALES)
    out[209::210] = b"\x08" * blocks
    return out


def rope_factors(c):
    """Llama 3's divisors of the rotary frequencies, as in llama.cpp's converter; None for other models."""
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") != "llama3":
        return []
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    old = scaling["original_max_position_embeddings"]
    head_dim = c["hidden_size"] // c["num_attention_heads"]
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * c["rope_theta"] ** (i / head_dim)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(factor)
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=shapes.NAMES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--pure", action="store_true", help="the output matrix in Q4_0 as well")
    args = parser.parse_args()
    print(write(shapes.load(args.shape), args.path, args.pure), "bytes of weights per token")
