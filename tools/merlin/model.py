"""merlin in PyTorch: the Qwen3.5 text model (gated delta net, gated attention) with one MTP layer.

Sequences are flat: `x` is [T, hidden], documents lie one after another and `cu_seqlens` marks
their starts, so a batch needs no padding and no state leaks between documents. On a GPU the
delta rule runs in flash-linear-attention and attention in PyTorch's flash kernel; on a CPU both
fall back to plain PyTorch. Weight names are those of the published Qwen3.5 checkpoints.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 8192
    hidden_size: int = 448
    intermediate_size: int = 768
    num_hidden_layers: int = 12
    full_attention_interval: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 8
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    partial_rotary_factor: float = 0.5
    max_position_embeddings: int = 8192

    def is_linear(self, i):
        return (i + 1) % self.full_attention_interval != 0


class RMSNorm(nn.Module):
    """Zero-centred: the stored weight is the gain minus one."""

    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1 + self.weight.float())).to(x.dtype)


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


class GatedNorm(nn.Module):
    """RMS norm per head with a plain gain, times silu(gate)."""

    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, gate):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float() * F.silu(gate.float())).to(x.dtype)


class Conv(nn.Module):
    """Causal depthwise convolution followed by silu; `weight` is [C, 1, K]."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, kernel) * kernel**-0.5)

    def forward(self, x, pos):
        w = self.weight[:, 0].float()
        last = w.shape[1] - 1
        y = x.float() * w[:, last]
        for j in range(1, last + 1):
            past = F.pad(x, (0, 0, j, 0))[: x.shape[0]].float()
            y = y + torch.where(pos[:, None] >= j, past, 0.0) * w[:, last - j]
        return F.silu(y).to(x.dtype)

    def step(self, x, history):
        """One token per sequence; `history` [N, K-1, C] holds the inputs before it."""
        window = torch.cat([history, x[:, None]], 1)
        y = torch.einsum("nkc,ck->nc", window.float(), self.weight[:, 0].float())
        return F.silu(y).to(x.dtype), window[:, 1:]


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.hk, self.hv, self.dk, self.dv = (
            c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)
        self.key_dim, value_dim = self.hk * self.dk, self.hv * self.dv
        self.in_proj_qkv = linear(c.hidden_size, 2 * self.key_dim + value_dim)
        self.in_proj_z = linear(c.hidden_size, value_dim)
        self.in_proj_b = linear(c.hidden_size, self.hv)
        self.in_proj_a = linear(c.hidden_size, self.hv)
        self.conv1d = Conv(2 * self.key_dim + value_dim, c.linear_conv_kernel_dim)
        # Half-lives from about one token to thousands.
        self.A_log = nn.Parameter(torch.empty(self.hv).uniform_(1, 16).log())
        dt = torch.exp(torch.linspace(-6.9, -2.3, self.hv))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = GatedNorm(self.dv, c.rms_norm_eps)
        self.out_proj = linear(value_dim, c.hidden_size)

    def project(self, x, pos, rope):
        return self.heads(self.conv1d(self.in_proj_qkv(x), pos), x)

    def heads(self, qkv, x):
        q, k, v = qkv.split([self.key_dim, self.key_dim, self.hv * self.dv], -1)
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        beta = self.in_proj_b(x).sigmoid()
        z = self.in_proj_z(x).view(-1, self.hv, self.dv)
        return (q.reshape(-1, self.hk, self.dk), k.reshape(-1, self.hk, self.dk),
                v.reshape(-1, self.hv, self.dv), g, beta, z)

    def mix(self, q, k, v, g, beta, batch, save):
        o, state = delta_rule(q, k, v, g, beta, batch, save is not None)
        if save is not None:
            save["state"] = state
        return o

    def output(self, o, z):
        return self.out_proj(self.norm(o, z).flatten(1))

    def step(self, x, cache, lengths, rope):
        qkv, cache["conv"] = self.conv1d.step(self.in_proj_qkv(x), cache["conv"])
        q, k, v, g, beta, z = self.heads(qkv, x)
        q, k = (t.float().repeat_interleave(self.hv // self.hk, 1) for t in (q, k))
        q, k = l2norm(q) * self.dk**-0.5, l2norm(k)
        s = cache["state"].float() * g.exp()[..., None, None]
        delta = (v.float() - torch.einsum("nhkv,nhk->nhv", s, k)) * beta.float()[..., None]
        s = s + k[..., None] * delta[..., None, :]
        cache["state"] = s
        return self.output(torch.einsum("nhkv,nhk->nhv", s, q).to(x.dtype), z)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv, self.d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = linear(c.hidden_size, 2 * self.h * self.d)
        self.k_proj = linear(c.hidden_size, self.kv * self.d)
        self.v_proj = linear(c.hidden_size, self.kv * self.d)
        self.o_proj = linear(self.h * self.d, c.hidden_size)
        self.q_norm = RMSNorm(self.d, c.rms_norm_eps)
        self.k_norm = RMSNorm(self.d, c.rms_norm_eps)

    def project(self, x, pos, rope):
        q, gate = self.q_proj(x).view(-1, self.h, 2 * self.d).chunk(2, -1)
        q = rotate(self.q_norm(q), rope)
        k = rotate(self.k_norm(self.k_proj(x).view(-1, self.kv, self.d)), rope)
        return q, k, self.v_proj(x).view(-1, self.kv, self.d), gate.reshape(-1, self.h * self.d)

    def mix(self, q, k, v, batch, save):
        if save is not None:
            save["k"], save["v"] = batch.pad(k, save["room"]), batch.pad(v, save["room"])
        return attention(q, k, v, batch)

    def output(self, o, gate):
        return self.o_proj(o.flatten(1) * gate.sigmoid())

    def step(self, x, cache, lengths, rope):
        q, k, v, gate = self.project(x, None, rope)
        rows = torch.arange(len(x), device=x.device)
        cache["k"][rows, lengths], cache["v"][rows, lengths] = k, v
        seen = torch.arange(cache["k"].shape[1], device=x.device) <= lengths[:, None]
        q = q.view(len(x), self.kv, -1, self.d)
        o = F.scaled_dot_product_attention(
            q, cache["k"].transpose(1, 2), cache["v"].transpose(1, 2), attn_mask=seen[:, None, None])
        return self.output(o.reshape(len(x), -1), gate)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = linear(c.hidden_size, c.intermediate_size)
        self.up_proj = linear(c.hidden_size, c.intermediate_size)
        self.down_proj = linear(c.intermediate_size, c.hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, c, is_linear):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.name = "linear_attn" if is_linear else "self_attn"
        setattr(self, self.name, GatedDeltaNet(c) if is_linear else Attention(c))
        self.mlp = MLP(c)

    @property
    def mixer(self):
        return getattr(self, self.name)

    # `before` and `after` are what torch.compile sees; the kernels between them stay eager.
    def before(self, x, pos, rope):
        return self.mixer.project(self.input_layernorm(x), pos, rope)

    def after(self, x, o, gate):
        x = x + self.mixer.output(o, gate)
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, x, batch, save=None):
        *parts, gate = self.before(x, batch.pos, batch.rope)
        if save is not None and self.name == "linear_attn":
            tail, valid = batch.tail(self.mixer.conv1d.weight.shape[-1] - 1)
            save["conv"] = self.mixer.in_proj_qkv(self.input_layernorm(x[tail])) * valid[..., None].to(x.dtype)
        return self.after(x, self.mixer.mix(*parts, batch, save), gate)

    def step(self, x, cache, lengths, rope):
        x = x + self.mixer.step(self.input_layernorm(x), cache, lengths, rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(c, c.is_linear(i)) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class MTP(nn.Module):
    """Predicts the token after next from a hidden state and the embedding of the next token."""

    def __init__(self, c):
        super().__init__()
        self.fc = linear(2 * c.hidden_size, c.hidden_size)
        self.pre_fc_norm_embedding = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.pre_fc_norm_hidden = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList([DecoderLayer(c, False)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def join(self, embedding, hidden):
        return self.fc(torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1))


class Merlin(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = Trunk(c)
        self.mtp = MTP(c)
        dim = int(c.head_dim * c.partial_rotary_factor)
        freq = 1.0 / c.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
        self.register_buffer("inv_freq", freq, persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                scale = (2 * c.num_hidden_layers) ** -0.5 if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(p, std=0.02 if "embed" in name else scale * p.shape[1] ** -0.5)

    def rope(self, pos):
        angle = pos[:, None].float() * self.inv_freq.float()
        return angle.cos(), angle.sin()

    def embed(self, tokens):
        return self.model.embed_tokens(tokens)

    def head(self, h):
        return h @ self.model.embed_tokens.weight.to(h.dtype).T

    def hidden(self, tokens, batch, caches=None):
        x = self.embed(tokens)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, batch, caches[i] if caches else None)
        return self.model.norm(x)

    def mtp_hidden(self, hidden, next_tokens, batch):
        x = self.mtp.join(self.embed(next_tokens), hidden)
        return self.mtp.norm(self.mtp.layers[0](x, batch))

    def step(self, tokens, caches, lengths):
        """Next-token logits for one more token of each sequence; `lengths` counts those before it."""
        x, rope = self.embed(tokens), self.rope(lengths)
        for layer, cache in zip(self.model.layers, caches):
            x = layer.step(x, cache, lengths, rope)
        return self.head(self.model.norm(x))

    @torch.no_grad()
    def generate(self, prompts, max_new, stop, greedy=True):
        """Greedy continuations of several prompts at once: lists of token ids, stop token left off."""
        device = self.inv_freq.device
        batch = Batch([len(p) for p in prompts], self, device)
        flat = torch.tensor([t for p in prompts for t in p], device=device)
        caches = [{"room": max_new} for _ in self.model.layers]
        h = self.hidden(flat, batch, caches)
        lengths = batch.lengths.clone()
        token = self.head(h[batch.cu[1:].long() - 1]).argmax(-1)
        out, done = [[] for _ in prompts], [False] * len(prompts)
        for n in range(max_new):
            for i, t in enumerate(token.tolist()):
                done[i] = done[i] or t in stop
                if not done[i]:
                    out[i].append(t)
            if all(done) or n == max_new - 1:
                break
            token = self.step(token, caches, lengths).argmax(-1)
            lengths += 1
        return out


class Batch:
    """Where the documents of a flat sequence lie, and the rotary angles of its positions."""

    def __init__(self, lengths, model, device, cu=None):
        if cu is None:
            cu = F.pad(torch.tensor(lengths, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
        self.cu_cpu = cu.long()
        self.cu = cu.to(device=device, dtype=torch.int32, non_blocking=True)
        self.cu_long = self.cu.long()
        sizes = (cu[1:] - cu[:-1]).long()
        self.max_len = int(sizes.max())
        total = int(cu[-1])
        pos = torch.arange(total) - torch.repeat_interleave(cu[:-1].long(), sizes)
        self.pos = pos.to(device, non_blocking=True)
        self.lengths = sizes.to(device, non_blocking=True)
        self.rope = model.rope(self.pos)

    def tail(self, n):
        """Indices [docs, n] of each document's last n positions, and which of them exist."""
        end, start = self.cu_long[1:, None], self.cu_long[:-1, None]
        index = end - n + torch.arange(n, device=end.device)
        return index.clamp(min=start), index >= start

    def pad(self, x, room):
        """[T, heads, d] to [docs, longest + room, heads, d]."""
        out = x.new_zeros(len(self.lengths), self.max_len + room, *x.shape[1:])
        doc = torch.repeat_interleave(torch.arange(len(self.lengths), device=x.device), self.lengths)
        out[doc, self.pos] = x
        return out


def rotate(x, rope):
    """Half-split rotary embedding on the first dimensions of each head."""
    cos, sin = (t[:, None] for t in rope)
    n = cos.shape[-1]
    a, b, rest = x[..., :n].float(), x[..., n : 2 * n].float(), x[..., 2 * n :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def l2norm(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def attention(q, k, v, batch):
    if q.is_cuda:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, batch.cu, batch.cu, batch.max_len, batch.max_len, 0.0, True, False)[0]
    out = []
    for a, b in zip(batch.cu_cpu[:-1].tolist(), batch.cu_cpu[1:].tolist()):
        qkv = (t[a:b].transpose(0, 1)[None] for t in (q, k, v))
        out.append(F.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(out)


def delta_rule(q, k, v, g, beta, batch, want_state):
    """The gated delta rule over a flat sequence; states are [docs, heads, Dk, Dv]."""
    if q.is_cuda:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        q, k, v, g, beta = (t[None].contiguous() for t in (q, k, v, g, beta))
        o, state = chunk_gated_delta_rule(
            q, k, v, g, beta, use_qk_l2norm_in_kernel=True, output_final_state=want_state,
            cu_seqlens=batch.cu_long, cu_seqlens_cpu=batch.cu_cpu)
        return o[0], state
    outs, states = [], []
    for a, b in zip(batch.cu_cpu[:-1].tolist(), batch.cu_cpu[1:].tolist()):
        o, s = delta_rule_chunks(*(t[a:b] for t in (q, k, v, g, beta)))
        outs.append(o)
        states.append(s)
    return torch.cat(outs), torch.stack(states)


def delta_rule_chunks(q, k, v, g, beta, size=64):
    """One document on the CPU, `size` tokens at a time (the chunked form of the delta rule)."""
    dtype, length = v.dtype, len(q)
    groups = v.shape[1] // q.shape[1]
    q, k = (l2norm(t.float()).repeat_interleave(groups, 1).transpose(0, 1) for t in (q, k))
    v, g, beta = v.float().transpose(0, 1), g.float().T, beta.float().T[..., None]
    q = q * q.shape[-1] ** -0.5
    s = q.new_zeros(v.shape[0], k.shape[-1], v.shape[-1])
    out = []
    for i in range(0, length, size):
        qc, kc, vc, bc = (t[:, i : i + size] for t in (q, k, v, beta))
        c = g[:, i : i + size].cumsum(-1)
        n = c.shape[-1]
        decay = (c[:, :, None] - c[:, None]).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf")).exp()
        system = ((kc * bc) @ kc.mT * decay).tril(-1) + torch.eye(n)
        rhs = torch.cat([vc * bc, kc * bc * c.exp()[..., None]], -1)
        u, w = torch.linalg.solve_triangular(system, rhs, upper=False, unitriangular=True).split([v.shape[-1], k.shape[-1]], -1)
        new = u - w @ s
        out.append((qc * c.exp()[..., None]) @ s + (qc @ kc.mT * decay) @ new)
        s = s * c[:, -1:, None].exp() + (kc * (c[:, -1:] - c).exp()[..., None]).mT @ new
    return torch.cat(out, 1).transpose(0, 1).to(dtype), s
