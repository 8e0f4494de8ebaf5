#!/usr/bin/env python3
"""Writes a checkpoint folder of a shape with random weights in MLX's affine format, 4 bits, groups of 64.

    python3 benchmarks/peers/write_mlx.py qwen3.5-0.8b FOLDER

The names and layouts are those of mlx-lm's own quantised copies, so mlx-lm and Lanner both load it. The same shape gives
the same bytes. Needs nothing but Python's standard library.
"""

import argparse
import json
import math
import random
import struct
from array import array
from pathlib import Path

import shapes

BITS, GROUP = 4, 64


def write(shape, folder, tower=False):
    """Writes config.json and model.safetensors, and returns the bytes of weights that a decoded token reads.

    With `tower` the vision tower too, in bfloat16 and with the hub's names."""
    folder.mkdir(parents=True, exist_ok=True)
    config = shape.config | {"quantization": {"group_size": GROUP, "bits": BITS, "mode": "affine"}}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = [part for name, dimensions in shape.tensors.items() for part in parts(rename(name), dimensions)]
    if tower:
        tensors += [(name, "BF16", dimensions, dense) for name, dimensions in shape.tower.items()]
    listed, offset = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, dimensions, _ in tensors:
        end = offset + size(dtype, dimensions)
        listed[name] = {"dtype": dtype, "shape": dimensions, "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(listed).encode()
    header += b" " * (-len(header) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name, dtype, dimensions, fill in tensors:
            for chunk in fill(name, math.prod(dimensions)):
                file.write(chunk)
    return sum(size(dtype, dimensions) for name, dtype, dimensions, _ in tensors
               if name not in shape.tower and (shape.tied or "embed_tokens." not in name))  # an untied embedding gives one row


def rename(name):
    return name.replace("model.language_model.", "language_model.model.")


def parts(name, dimensions):
    """The stored tensors of one tensor of the hub: (name, dtype, dimensions, generator)."""
    if name.endswith("conv1d.weight"):
        return [(name, "BF16", [dimensions[0], dimensions[2], 1], small)]
    if name.endswith("A_log"):
        return [(name, "F32", dimensions, decays)]
    if len(dimensions) == 1:
        return [(name, "BF16", dimensions, zeros if name.endswith("bias") else ones)]
    rows, columns = dimensions
    stem = name.removesuffix(".weight")
    groups = [rows, columns // GROUP]
    return [(name, "U32", [rows, columns * BITS // 32], nibbles), (f"{stem}.scales", "BF16", groups, scales),
            (f"{stem}.biases", "BF16", groups, biases)]


def size(dtype, dimensions):
    return math.prod(dimensions) * {"BF16": 2, "F32": 4, "U32": 4}[dtype]


def nibbles(name, count):
    rng = random.Random(name)
    step = 1 << 20
    return (rng.randbytes(4 * min(step, count - start)) for start in range(0, count, step))


def scales(name, count):
    """2^-8 to 2^-7."""
    return [with_mantissas(name.removesuffix(".scales"), count, b"\x3b", 0x80)]


def biases(name, count):
    """-8 times the scales: the middle of the nibbles' range becomes zero."""
    return [with_mantissas(name.removesuffix(".biases"), count, b"\xbd", 0x00)]


def with_mantissas(stem, count, high, lowest_exponent_bit):
    """bf16 numbers with random mantissas, the same for the same stem."""
    mantissas = random.Random(f"{stem} mantissas").randbytes(count)
    out = bytearray(high * (2 * count))
    out[0::2] = mantissas.translate(bytes(lowest_exponent_bit | byte & 0x7f for byte in range(256)))
    return out


def small(name, count):
    """2^-3 to 2^-2, of both signs."""
    rng = random.Random(name)
    return [b"".join(bytes((rng.randrange(128), rng.choice((0x3e, 0xbe)))) for _ in range(count))]


def dense(name, count):
    """Norms are ones, biases zeros, and everything else 2^-6 to 2^-5, of both signs."""
    if name.endswith("bias"):
        return zeros(name, count)
    if "norm" in name:
        return ones(name, count)
    return shapes.random_words(name, count, (0x7f, 0x80), (0x80, 0x3c))


def decays(name, count):
    rng = random.Random(name)
    return [array("f", (rng.uniform(-0.7, 2.0) for _ in range(count))).tobytes()]


def ones(_, count):
    return [b"\x80\x3f" * count]


def zeros(_, count):
    return [bytes(2 * count)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=shapes.NAMES)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(write(shapes.load(args.shape), args.folder), "bytes of weights per token")
