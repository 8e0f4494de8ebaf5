"""The vision tower of Qwen3.5 in PyTorch, over a flat sequence of the patches of many pictures.

Names are those of the published checkpoints below `model.visual`, except that the patch embedding here is a
matrix over one frame: both frames of a patch are the same picture, so the export gives each half of the weight.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import rotate
from vision.pixels import FRAMES, MERGE, PATCH


@dataclass
class Config:
    depth: int = 8
    hidden_size: int = 256
    intermediate_size: int = 1024
    num_heads: int = 4
    out_hidden_size: int = 448
    num_position_embeddings: int = 256
    in_channels: int = 3
    patch_size: int = PATCH
    spatial_merge_size: int = MERGE
    temporal_patch_size: int = FRAMES


class LayerNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return F.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, 1e-6).to(x.dtype)


class Linear(nn.Module):
    """With a bias that stays float32 while the matrix may be bf16."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n_out, n_in) * n_in**-0.5), nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias.to(x.dtype))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c.num_heads
        self.qkv, self.proj = Linear(c.hidden_size, 3 * c.hidden_size), Linear(c.hidden_size, c.hidden_size)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.linear_fc1, self.linear_fc2 = Linear(c.hidden_size, c.intermediate_size), Linear(c.intermediate_size, c.hidden_size)

    def forward(self, x):
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(c.hidden_size), LayerNorm(c.hidden_size)
        self.attn, self.mlp = Attention(c), Mlp(c)

    # torch.compile sees these two; the attention between them stays eager.
    def before(self, x, rope):
        q, k, v = self.attn.qkv(self.norm1(x)).view(len(x), 3, self.attn.heads, -1).unbind(1)
        return rotate(q, rope), rotate(k, rope), v.contiguous()

    def after(self, x, o):
        x = x + self.attn.proj(o.flatten(1))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.proj = Linear(c.in_channels * c.patch_size**2, c.hidden_size)


class Merger(nn.Module):
    """Joins blocks of 2 x 2 patches, which are neighbours in merge order, into one token of the language model."""

    def __init__(self, c):
        super().__init__()
        self.width = c.hidden_size * c.spatial_merge_size**2
        self.norm = LayerNorm(c.hidden_size)
        self.linear_fc1, self.linear_fc2 = Linear(self.width, self.width), Linear(self.width, c.out_hidden_size)

    def forward(self, x):
        x = self.norm(x).view(-1, self.width)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class Tower(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.patch_embed, self.pos_embed = PatchEmbed(c), nn.Embedding(c.num_position_embeddings, c.hidden_size)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))
        self.merger = Merger(c)
        self.side = int(c.num_position_embeddings**0.5)
        quarter = c.hidden_size // c.num_heads // 4
        self.register_buffer("inv_freq", 1e4 ** (-torch.arange(quarter).float() / quarter), persistent=False)
        nn.init.normal_(self.pos_embed.weight, std=0.02)
        with torch.no_grad():
            for b in self.blocks:
                for w in (b.attn.proj.weight, b.mlp.linear_fc2.weight):
                    w.mul_((2 * c.depth) ** -0.5)

    def positions(self, place):
        """Each patch's position vector: the learnt table, bilinear between its points, corners on
        corners. A product of matrices computes it, because that has a fast gradient."""
        point, shares = torch.arange(self.side, device=place.device), []
        for i in (0, 1):
            at = place[:, i].float() * (self.side - 1) / (place[:, i + 2].float() - 1).clamp(min=1)
            shares.append((1 - (at[:, None] - point).abs()).clamp(min=0))
        return (shares[0][:, :, None] * shares[1][:, None, :]).flatten(1) @ self.pos_embed.weight

    def rope(self, place):
        """Angles of a quarter of a head by row, of a quarter by column, as cosines and sines."""
        angle = torch.cat([place[:, i, None].float() * self.inv_freq.float() for i in (0, 1)], -1)
        return angle.cos(), angle.sin()

    def start(self, pixels, place):
        return self.patch_embed.proj(pixels) + self.positions(place).to(pixels.dtype)

    def forward(self, pixels, place, cu, longest, middle=None):
        """Features [tokens, out_hidden_size] of normalised patches [patches, 3 * 16 * 16]; `place` has each patch's row, column and the
        rows and columns of its picture, `cu` the starts of the pictures. With `middle`, the hidden states after that block as well."""
        x, rope, seen = self.start(pixels, place), self.rope(place), None
        for i, block in enumerate(self.blocks):
            x = block.after(x, attention(*block.before(x, rope), cu, longest))
            if i + 1 == middle:
                seen = x
        return self.merger(x), seen


def attention(q, k, v, cu, longest):
    """Both ways, within each picture."""
    if q.is_cuda:
        return torch.ops.aten._flash_attention_forward(q, k, v, cu, cu, longest, longest, 0.0, False, False)[0]
    out = []
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if b > a:
            qkv = (t[a:b].transpose(0, 1)[None] for t in (q, k, v))
            out.append(F.scaled_dot_product_attention(*qkv)[0].transpose(0, 1))
    return torch.cat(out)
