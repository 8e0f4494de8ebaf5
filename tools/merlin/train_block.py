"""Trains a block drafter for merlin: a small model in DFlash's layout that guesses a block of tokens in one pass.

It sees what merlin's layers made of every token before the block, the block's first token, and a mask in place of the
others (https://arxiv.org/abs/2602.06036). Data are the arrays of prepare.py and answers.py. One run has a flat learning
rate and a decay to zero; begun again with the same `--out` it goes on where it was saved.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

from export import load, write_json
from model import Batch, Merlin, linear
from prepare import ANSWER, TEXT
from train import orthogonal

# The published layout's config.json; the embedding and the output head are merlin's.
CONFIG = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "block_size": 8,
    "dflash_config": {"mask_token_id": 8185, "target_layer_ids": [3, 7, 11]}, "num_target_layers": 12,
    "hidden_size": 448, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 32, "layer_types": ["full_attention"] * 2, "sliding_window": None, "use_sliding_window": False,
    "vocab_size": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000, "rope_scaling": None, "max_position_embeddings": 8192,
    "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True,
}
# Later tokens of a draft weigh less: they are useless if an earlier one is wrong.
FALL = 4.0


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.kv, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = linear(c["hidden_size"], self.h * self.d)
        self.k_proj = linear(c["hidden_size"], self.kv * self.d)
        self.v_proj = linear(c["hidden_size"], self.kv * self.d)
        self.o_proj = linear(self.h * self.d, c["hidden_size"])
        self.q_norm = nn.RMSNorm(self.d, c["rms_norm_eps"])
        self.k_norm = nn.RMSNorm(self.d, c["rms_norm_eps"])

    def heads(self, x, project, norm=None, rope=None):
        """`x` [..., n, hidden] as float32 [heads, ..., n, head_dim], normed and rotated where that is asked for."""
        y = project(x).float().unflatten(-1, (-1, self.d))
        if norm is not None:
            a, b = norm(y).chunk(2, -1)
            cos, sin = (t.unsqueeze(-2) for t in rope)
            y = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return y.movedim(-2, 0).contiguous()

    def forward(self, x, context, view):
        """`x` [blocks, block, hidden], `context` [T, hidden]."""
        q = self.heads(x, self.q_proj, self.q_norm, view.rope).unflatten(0, (self.kv, -1)).movedim(1, 2).flatten(2, 3)
        kb, kc = self.heads(x, self.k_proj, self.k_norm, view.rope), self.heads(context, self.k_proj, self.k_norm, view.context_rope)
        vb, vc = self.heads(x, self.v_proj), self.heads(context, self.v_proj)
        with torch.autocast("cpu", enabled=False):
            # [kv heads, blocks, queries of a block, keys]
            seen = (q.flatten(1, 2) @ kc.mT).view(*q.shape[:3], -1).masked_fill(~view.seen[:, None], -math.inf)
            p = (torch.cat([seen, q @ kb.mT], -1) * self.d**-0.5).softmax(-1)
            n = seen.shape[-1]
            o = (p[..., :n].flatten(1, 2) @ vc).view(q.shape) + p[..., n:] @ vb
        o = o.unflatten(2, (-1, x.shape[1])).permute(1, 3, 0, 2, 4)
        return self.o_proj(o.flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.up_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.down_proj = linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn, self.mlp = Attention(c), MLP(c)

    def forward(self, x, context, view):
        x = x + self.self_attn(self.input_layernorm(x), context, view)
        return x + self.mlp(self.post_attention_layernorm(x))


class Block(nn.Module):
    """The drafter, for many blocks of the same documents at once."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        inputs = len(c["dflash_config"]["target_layer_ids"]) * c["hidden_size"]
        self.fc = linear(inputs, c["hidden_size"])
        # A few channels of the residual stream are a hundred times the others. Folded into fc where the drafter is saved.
        self.register_buffer("spread", torch.ones(inputs))
        self.hidden_norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        for name, p in self.named_parameters():
            if p.ndim == 2:
                scale = (2 * len(self.layers)) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(p, std=scale * p.shape[1] ** -0.5)

    def forward(self, hidden, embedded, view):
        """Hidden states of the block's places from the target's [T, layers * hidden] and embeddings [blocks, block, hidden]."""
        context = self.hidden_norm(self.fc(hidden / self.spread))
        for layer in self.layers:
            embedded = layer(embedded, context, view)
        return self.norm(embedded)


class View:
    """The context of each block (before its first token, in its document), and the rotary angles of both."""

    def __init__(self, c, batch, starts):
        doc = torch.repeat_interleave(torch.arange(len(batch.lengths)), batch.lengths)
        at = torch.arange(len(doc))
        self.seen = (doc == doc[starts, None]) & (at < starts[:, None])
        freq = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2) / c["head_dim"])
        angle = lambda pos: ((pos[..., None] * freq).cos(), (pos[..., None] * freq).sin())
        self.context_rope = angle(batch.pos)
        self.rope = angle(batch.pos[starts, None] + torch.arange(c["block_size"]))


class Optimizer:
    """Muon for matrices, Adam for the norms."""

    def __init__(self, model, lr):
        self.lr = lr
        self.matrices = [p for p in model.parameters() if p.ndim == 2]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.Adam([p for p in model.parameters() if p.ndim != 2], lr=lr / 5, betas=(0.9, 0.95))

    @torch.no_grad()
    def step(self, share):
        for p, m in zip(self.matrices, self.momentum):
            m.lerp_(p.grad, 0.05)
            update = orthogonal(p.grad.lerp(m, 0.95)).to(p.dtype)
            p.mul_(1 - 0.01 * share * self.lr).add_(update, alpha=-share * self.lr * max(1, p.shape[0] / p.shape[1]) ** 0.5)
            p.grad = None
        self.adam.param_groups[0]["lr"] = share * self.lr / 5
        self.adam.step()
        self.adam.zero_grad()

    def state(self):
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def restore(self, state):
        self.momentum = state["momentum"]
        self.adam.load_state_dict(state["adam"])


class Documents:
    def __init__(self, folder, groups):
        self.groups = [[np.load(folder / f"{g}.{k}.npy", mmap_mode="r") for k in ("tokens", "kinds", "starts")] for g in groups]

    def batch(self, rng, shares, size, longest):
        """Flat token ids and kinds of documents with `size` tokens, and their lengths."""
        docs, total = [], 0
        while total < size:
            tokens, kinds, starts = self.groups[rng.choice(len(shares), p=shares)]
            i = rng.integers(len(starts) - 1)
            a, b = starts[i], starts[i + 1]
            b = min(b, a + longest, a + size - total)
            docs.append((tokens[a:b], kinds[a:b]))
            total += b - a
        return [torch.from_numpy(np.concatenate([d[i] for d in docs]).astype(np.int64)) for i in (0, 1)] + [[len(t) for t, _ in docs]]


@torch.no_grad()
def watch(merlin, tokens, batch, layers):
    """The residual stream after `layers` (indices from 0), concatenated: [T, layers * hidden]."""
    x, out = merlin.embed(tokens), []
    for i, layer in enumerate(merlin.model.layers[: max(layers) + 1]):
        x = layer(x, batch)
        out += [x] if i in layers else []
    return torch.cat(out, -1)


def blocks(tokens, kinds, lengths, block, rng, most):
    """Starts of blocks whose other tokens are all merlin's or text."""
    ends = np.repeat(np.cumsum(lengths), lengths)
    at = np.arange(len(tokens))
    begins = ends - np.repeat(lengths, lengths)
    wanted = np.isin(kinds.numpy(), (ANSWER, TEXT))
    good = np.flatnonzero((at + block <= ends) & (at > begins) & np.roll(wanted, -1))
    return torch.from_numpy(np.sort(rng.choice(good, min(most, len(good)), replace=False))) if len(good) else None


def guesses(merlin, drafter, tokens, lengths, starts):
    """Logits [blocks, block - 1, vocab] and the tokens that they guess."""
    c = drafter.c
    batch = Batch(lengths, merlin, "cpu")
    hidden = watch(merlin, tokens, batch, c["dflash_config"]["target_layer_ids"])
    block = tokens[starts[:, None] + torch.arange(c["block_size"])]
    masked = block.clone()
    masked[:, 1:] = c["dflash_config"]["mask_token_id"]
    with torch.autocast("cpu", torch.bfloat16):
        out = drafter(hidden, merlin.embed(masked), View(c, batch, starts))
        # As one matrix: of a slice of three dimensions the head's product would be one for each block.
        return merlin.head(out[:, 1:].flatten(0, 1).bfloat16()).float().view(*out[:, 1:].shape[:2], -1), block[:, 1:]


def right(logits, target):
    """Accuracy at each position, and accepted tokens of each block."""
    hit = logits.argmax(-1) == target
    return hit.float().mean(0), hit.cumprod(1).sum(1).float().mean()


@torch.no_grad()
def judge(merlin, drafter, documents, args):
    """Prints the accuracy of drafts of merlin's answers, for blocks at all positions."""
    rng, results = np.random.default_rng(1), []
    for _ in range(40):
        tokens, kinds, lengths = documents.batch(rng, np.ones(1), args.tokens, args.longest)
        starts = blocks(tokens, kinds, lengths, drafter.c["block_size"], rng, args.blocks)
        if starts is not None:
            results.append(guesses(merlin, drafter, tokens, lengths, starts))
    hits = torch.cat([logits.argmax(-1) == target for logits, target in results])
    kept = hits.cumprod(1).float().mean(0)
    print(f"{len(hits)} blocks: {kept.sum():.3f} tokens accepted of {hits.shape[1]}; each place", " ".join(f"{x:.3f}" for x in hits.float().mean(0)),
          "with all before it", " ".join(f"{x:.3f}" for x in kept))


def save(out, drafter, optimizer, step):
    out.mkdir(parents=True, exist_ok=True)
    weights = drafter.state_dict()
    weights["fc.weight"] = weights["fc.weight"] / weights.pop("spread")
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in weights.items()}, str(out / "model.safetensors"), metadata={"format": "pt"})
    write_json(out / "config.json", drafter.c)
    torch.save({"step": step, "drafter": drafter.state_dict(), "optimizer": optimizer.state()}, out / "resume.pt")


def main(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    state, config = load(args.model)
    merlin = Merlin(config)
    merlin.load_state_dict(state)
    merlin.requires_grad_(False)
    for p in merlin.parameters():
        p.data = p.data.to(torch.bfloat16 if p.ndim == 2 else torch.float32)
    drafter = Block(CONFIG)
    optimizer = Optimizer(drafter, args.lr)
    step = 0
    if (args.out / "resume.pt").exists():
        saved = torch.load(args.out / "resume.pt")
        drafter.load_state_dict(saved["drafter"])
        optimizer.restore(saved["optimizer"])
        drafter.spread, step = saved["drafter"]["spread"], saved["step"]
    if args.judge:
        return judge(merlin, drafter, Documents(args.data, ["answers"]), args)
    shares = np.array([float(share) for _, share in args.mix])
    documents, rng = Documents(args.data, [name for name, _ in args.mix]), np.random.default_rng(step)
    if step == 0:
        # The output head is merlin's, and used to what comes out of merlin's norm.
        drafter.norm.weight.data = 0.3 * (1 + merlin.model.norm.weight.data)
        tokens, _, lengths = documents.batch(rng, shares / shares.sum(), 8192, args.longest)
        drafter.spread = watch(merlin, tokens, Batch(lengths, merlin, "cpu"), CONFIG["dflash_config"]["target_layer_ids"]).float().std(0)
    fall = torch.exp(-torch.arange(CONFIG["block_size"] - 1) / FALL)
    print(f"{sum(p.numel() for p in drafter.parameters()) / 1e6:.2f}M parameters, from step {step}", flush=True)
    mean, saved = None, time.time()
    while step < args.steps:
        tokens, kinds, lengths = documents.batch(rng, shares / shares.sum(), args.tokens, args.longest)
        starts = blocks(tokens, kinds, lengths, CONFIG["block_size"], rng, args.blocks)
        if starts is None:
            continue
        logits, target = guesses(merlin, drafter, tokens, lengths, starts)
        loss = (F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape) * fall).mean() / fall.mean()
        loss.backward()
        optimizer.step(min(1, (step + 1) / 50, (1 - step / args.steps) / args.decay))
        now = torch.cat([loss.detach()[None], right(logits, target)[1][None], right(logits, target)[0]])
        mean = now if mean is None else mean.lerp(now, 0.05)
        step += 1
        if step % 20 == 0:
            print(f"{step} loss {mean[0]:.3f} accepted {mean[1]:.2f} places", " ".join(f"{x:.2f}" for x in mean[2:]), flush=True)
        if time.time() - saved > 120:
            save(args.out, drafter, optimizer, step)
            saved = time.time()
    save(args.out, drafter, optimizer, step)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--model", default="../../models/merlin")
    p.add_argument("--judge", action="store_true", help="only measure what lies in --out, on held-out answers in --data")
    p.add_argument("--mix", nargs="+", type=lambda s: s.split("="), default=[("answers", 1)], help="groups of the data and their shares, GROUP=SHARE")
    p.add_argument("--steps", type=int, default=4000)
    p.add_argument("--decay", type=float, default=0.5, help="share of the run in which the learning rate falls")
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--tokens", type=int, default=512, help="of a step")
    p.add_argument("--longest", type=int, default=320, help="tokens of a document")
    p.add_argument("--blocks", type=int, default=128, help="of a step")
    p.add_argument("--threads", type=int, default=1)
    main(p.parse_args())
