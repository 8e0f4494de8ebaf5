"""Tensors from a manifest: every element follows from the tensor's name, a seed and its index, by integers alone.

crates/engine/tests/it/support/checkpoint.rs is the same recipe in Rust. A manifest is {name: spec}, a spec one of

    {"dtype": "F32" | "BF16" | "F16", "shape": [...], "mean": m, "spread": s}   uniform in [m - s, m + s)
    {"dtype": "U32", "shape": [...], "bits": true}                              random bits, those of "mask" if given
    {"dtype": "U8", "shape": [...], "low": a, "high": b}                        uniform integers, b included
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
ITEM_SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U32": 4, "U8": 1}


def fnv1a(text):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return h


def random_bits(name, seed, count):
    """`count` outputs of SplitMix64 started at the name's hash xor the seed."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a(name) ^ seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def values(name, seed, spec):
    """The tensor of a spec."""
    z = random_bits(name, seed, math.prod(spec["shape"]))
    top = z >> np.uint64(40)
    if spec["dtype"] == "U32":
        flat = torch.from_numpy((z >> np.uint64(32)).astype(np.uint32) & np.uint32(spec.get("mask", 0xFFFFFFFF)))
    elif spec["dtype"] == "U8":
        span = np.uint64(spec["high"] - spec["low"] + 1)
        flat = torch.from_numpy((np.uint64(spec["low"]) + top % span).astype(np.uint8))
    else:
        exact = spec["mean"] + spec["spread"] * (top.astype(np.float64) / 2.0**23 - 1.0)
        flat = torch.from_numpy(exact.astype(np.float32)).to(FLOATS[spec["dtype"]])
    return flat.reshape(spec["shape"])


def size(manifest):
    """Bytes of the whole checkpoint."""
    return sum(ITEM_SIZES[spec["dtype"]] * math.prod(spec["shape"]) for spec in manifest.values())


def write(golden, folder):
    """model.safetensors, or `shards` files and their index."""
    tensors = {name: values(name, golden["seed"], spec) for name, spec in golden["tensors"].items()}
    folder, names, shards = Path(folder), sorted(tensors), golden.get("shards", 1)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    index = {"metadata": {"total_size": size(golden["tensors"])}, "weight_map": {}}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
