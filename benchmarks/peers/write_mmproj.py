#!/usr/bin/env python3
"""Writes the GGUF of a shape's vision tower with random weights, as llama.cpp's converter does for Qwen3-VL and 3.5.

    python3 benchmarks/peers/write_mmproj.py qwen3.5-0.8b mmproj.gguf

Matrices are in half precision, all else in float32. Needs nothing but Python's standard library.
"""

import argparse
import math
from array import array
from pathlib import Path

import shapes
import write_gguf
from write_gguf import F32

F16 = (1, 1, 2)

# The hub's name of a tensor in `model.visual.`, and llama.cpp's (tools/mtmd/clip-impl.h).
BLOCK = {"attn.proj": "attn_out", "attn.qkv": "attn_qkv", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down",
         "norm1": "ln1", "norm2": "ln2"}
OUTSIDE = {"merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2", "merger.norm": "v.post_ln",
           "patch_embed.proj": "v.patch_embd", "pos_embed": "v.position_embd"}


def write(shape, path):
    vision = shape.config["vision_config"]
    tensors = [part for name, dimensions in shape.tower.items() for part in parts(name, dimensions)]
    with open(path, "wb") as file:
        file.write(write_gguf.header(metadata(vision), tensors))
        for name, dimensions, kind in tensors:
            write_gguf.pad(file)
            for chunk in contents(name, math.prod(dimensions), kind):
                file.write(chunk)
        write_gguf.pad(file)


def parts(name, dimensions):
    """The tensors in the file of one tensor of the hub: (name, dimensions, type)."""
    module, kind = name.removeprefix("model.visual.").rsplit(".", 1)
    if module == "patch_embed.proj" and kind == "weight":
        frame = [dimensions[0], dimensions[1], *dimensions[3:]]
        return [("v.patch_embd.weight", frame, F16), ("v.patch_embd.weight.1", frame, F16)]
    if module.startswith("blocks."):
        _, index, rest = module.split(".", 2)
        stem = f"v.blk.{index}.{BLOCK[rest]}"
    else:
        stem = OUTSIDE[module]
    return [(f"{stem}.{kind}", dimensions, F32 if len(dimensions) == 1 or module == "pos_embed" else F16)]


def metadata(vision):
    side = math.isqrt(vision["num_position_embeddings"])
    return {
        "general.architecture": "clip",
        "general.file_type": 1,
        "clip.has_vision_encoder": True,
        "clip.projector_type": "qwen3vl_merger",
        "clip.use_gelu": True,
        "clip.vision.image_size": side * vision["patch_size"],
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision["hidden_size"],
        "clip.vision.feed_forward_length": vision["intermediate_size"],
        "clip.vision.projection_dim": vision["out_hidden_size"],
        "clip.vision.block_count": vision["depth"],
        "clip.vision.attention.head_count": vision["num_heads"],
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.spatial_merge_size": vision["spatial_merge_size"],
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }


def contents(name, count, kind):
    if kind is F32:
        value = 0.0 if name.endswith("bias") else 1.0
        return [array("f", [value]).tobytes() * count]
    # 2^-6 to 2^-5, of both signs.
    return shapes.random_words(name, count, (0xff, 0x83), (0x00, 0x24))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=shapes.NAMES)
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    write(shapes.load(args.shape), args.path)
