"""merlin's frozen text model over rows of equal length, with pictures spliced in and rotary positions of three axes.

It computes what model.Merlin computes. The delta rule runs here in plain PyTorch (chunks of all rows at once), so
that torch.compile differentiates it and no other package is needed.
"""

import torch

from model import attention, l2norm

CHUNK = 32


def axes(count, section):
    """Which position (time, row or column) each of `count` rotary frequencies takes: interleaved sections."""
    out = torch.zeros(count, dtype=torch.long)
    for axis in (1, 2):
        out[axis : section[axis] * 3 : 3] = axis
    return out


def inverse(lower):
    """(I + lower)^-1 of strictly lower triangular matrices, from the inverses of ever larger diagonal blocks. Unlike a power series
    it stays exact where keys repeat, as those of a plain background do."""
    n = lower.shape[-1]
    index = torch.arange(n, device=lower.device)
    out, size = torch.eye(n, device=lower.device) - lower * corners(index, 1), 2
    while size < n:
        out = out - out @ (lower * corners(index, size)) @ out
        size *= 2
    return out


def corners(index, size):
    """1 in the lower left quarter of each diagonal block of 2 * size."""
    row, column = index[:, None], index[None, :]
    return ((row // (2 * size) == column // (2 * size)) & (row // size > column // size)).float()


def delta_rule(q, k, v, g, beta):
    """The gated delta rule of [rows, length, heads, width] from empty states; `g` and `beta` are [rows, length, heads]."""
    dtype, groups = v.dtype, v.shape[2] // q.shape[2]
    q, k = (l2norm(t.float()).repeat_interleave(groups, 2) for t in (q, k))
    q = q * q.shape[-1] ** -0.5
    q, k, v, g, beta = (t.float().transpose(1, 2).unflatten(2, (-1, CHUNK)) for t in (q, k, v, g, beta))
    c = g.cumsum(-1)
    index = torch.arange(CHUNK, device=q.device)
    seen = index[:, None] >= index[None, :]
    decay = (c[..., :, None] - c[..., None, :]).masked_fill(~seen, float("-inf")).exp()
    beta = beta[..., None]
    system = inverse((k * beta) @ k.mT * decay * (index[:, None] > index[None, :]))
    u, w = system @ (v * beta), system @ (k * beta * c.exp()[..., None])
    inner, q, last = q @ k.mT * decay, q * c.exp()[..., None], c[..., -1:]
    k, last = (k * (last - c).exp()[..., None]).mT, last.exp()[..., None]
    state, out = 0, []
    for i in range(q.shape[2]):
        new = u[:, :, i] - w[:, :, i] @ state if i else u[:, :, i]
        o = inner[:, :, i] @ new
        out.append(o + q[:, :, i] @ state if i else o)
        update = k[:, :, i] @ new
        state = state * last[:, :, i] + update if i else update
    return torch.stack(out, 2).flatten(2, 3).transpose(1, 2).to(dtype)


class Rows:
    """Where equal rows lie in a flat sequence: what model.attention and the layers need of a batch."""

    def __init__(self, model, position, section):
        rows, length = position.shape[1:]
        device = position.device
        self.rows, self.length, self.max_len = rows, length, length
        self.cu = torch.arange(rows + 1, device=device, dtype=torch.int32) * length
        self.cu_cpu = torch.arange(rows + 1) * length
        self.pos = torch.arange(length, device=device).repeat(rows)
        self.axes = axes(len(model.inv_freq), section).to(device)
        self.place(model, position)

    def place(self, model, position):
        """Takes other rotary positions, [3, rows, length]."""
        angle = position.flatten(1).float()[self.axes].T * model.inv_freq.float()
        self.rope = angle.cos(), angle.sin()
        return self


def hidden(model, x, batch):
    """Final hidden states [rows * length, hidden] of embedded tokens."""
    for layer in model.model.layers:
        *parts, gate = layer.before(x, batch.pos, batch.rope)
        if layer.name == "self_attn":
            o = attention(*parts, batch)
        else:
            o = delta_rule(*(t.unflatten(0, (batch.rows, batch.length)) for t in parts)).flatten(0, 1)
        x = layer.after(x, o, gate)
    return model.model.norm(x)


def splice(model, ids, spot, features):
    """Embeds flat tokens, with the features in the places of the picture tokens; the place behind the last is for padding."""
    x = model.embed(ids)
    x = torch.cat([x, x.new_zeros(1, x.shape[1])])
    return x.index_copy(0, spot, features.to(x.dtype))[:-1]


def answer_logits(model, x, batch, where):
    """Logits at the positions `where`."""
    return model.head(hidden(model, x, batch)[where]).float()
