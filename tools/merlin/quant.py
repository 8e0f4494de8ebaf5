"""MLX's affine quantisation in PyTorch: used in training (fake), in export (packed) and in eval (unpacked)."""

import torch

GROUP = 64
BITS, EMBED_BITS = 4, 8


def bits_of(name):
    """Bits for a weight, or None where it stays unquantised."""
    if "embed_tokens" in name:
        return EMBED_BITS
    return BITS if name.endswith(("proj.weight", "fc.weight", *(f"in_proj_{x}.weight" for x in ("qkv", "z", "a", "b")))) else None


def affine(w, bits):
    """Codes, scales and biases of [..., n] in groups of 64, as mx.quantize chooses them: one end of each
    group is kept exactly and zero is on the grid. Scales and biases are rounded to bf16 first, because
    that is how they are stored."""
    w = w.float().unflatten(-1, (-1, GROUP))
    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    negative = low.abs() > high.abs()
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-7)
    scale = torch.where(negative, scale, -scale)
    edge = torch.where(negative, low, high)
    at = (edge / scale).round()
    scale = torch.where(at != 0, edge / torch.where(at != 0, at, 1), scale).bfloat16().float()
    bias = torch.where(at != 0, edge, 0).bfloat16().float()
    codes = ((w - bias) / scale).round().clamp(0, 2**bits - 1)
    return codes, scale, bias


def fake(w, bits):
    """The values `w` has after storing it as bf16 and quantising that."""
    codes, scale, bias = affine(w.bfloat16(), bits)
    return (codes * scale + bias).flatten(-2)


def pack(w, bits):
    """(packed uint32 as int32, scales, biases) of a [rows, n] weight: little-endian bit stream per row."""
    codes, scale, bias = affine(w, bits)
    per = 32 // bits
    codes = codes.flatten(-2).to(torch.int64).unflatten(-1, (-1, per))
    words = (codes << (torch.arange(per) * bits)).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return words, scale.squeeze(-1).bfloat16(), bias.squeeze(-1).bfloat16()


def unpack(words, scale, bias, bits):
    per = 32 // bits
    codes = (words.to(torch.int64)[..., None] >> (torch.arange(per, device=words.device) * bits)) & (2**bits - 1)
    codes = codes.flatten(-2).float().unflatten(-1, (-1, GROUP))
    return (codes * scale.float()[..., None] + bias.float()[..., None]).flatten(-2)
