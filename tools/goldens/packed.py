#!/usr/bin/env python3
"""Records the packed bytes of mx.quantize for one small matrix in every format and type.

    pip install 'mlx[cpu]==0.32.4'
    packed.py > ../../crates/engine/tests/packed.json

The matrix [4, 128] has value(i) at element i; crates/engine/tests/it/quantize.rs makes the same.
"""

import json

import mlx.core as mx
import numpy as np

FORMATS = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FORMATS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def value(i):
    """Of any sign and several magnitudes; zeros in the last quarter row. Exact in float32."""
    z = i * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = ((z >> 40) - 2**23) / 2**23
    return 0.0 if i >= 480 else number * 2.0 ** (i // 64 - 6)


def hexadecimal(array):
    return bytes(np.array(array.view(mx.uint8))).hex()


mx.set_default_device(mx.cpu)
matrix = mx.array([value(i) for i in range(512)]).reshape(4, 128)
recorded = []
for dtype in (mx.float32, mx.float16, mx.bfloat16):
    for mode, bits, group in FORMATS:
        parts = mx.quantize(matrix.astype(dtype), group_size=group, bits=bits, mode=mode)
        recorded.append(dict(dtype=str(dtype).split(".")[-1], mode=mode, bits=bits, group_size=group,
                             parts=[hexadecimal(part) for part in parts]))
print("[\n" + ",\n".join(json.dumps(line) for line in recorded) + "\n]")
