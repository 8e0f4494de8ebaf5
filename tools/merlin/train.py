"""Trains merlin from scratch on the arrays of prepare.py, on one GPU.

A run has a warm-up, a flat learning rate on one mix of the data and a decay to zero on another; from
`--quantise-from` on, every matrix is seen as its 4-bit self. Matrices are trained by Muon, everything
else by AdamW. `--init` continues from the folder of an earlier run.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import quant
from export import load, save_hub
from model import Batch, Config, DecoderLayer, Merlin

# Share of the tokens from each group.
MIXES = {
    "flat": {"text": 0.17, "corpus_chats": 0.15, "corpus_tasks": 0.09, "recall": 0.27, "arithmetic": 0.07, "extract": 0.09, "tools": 0.10, "chat": 0.06},
    "decay": {"text": 0.10, "corpus_chats": 0.15, "corpus_tasks": 0.07, "recall": 0.28, "arithmetic": 0.10, "extract": 0.11, "tools": 0.11, "chat": 0.08},
    "refine": {"text": 0.05, "corpus_chats": 0.09, "corpus_tasks": 0.05, "recall": 0.29, "arithmetic": 0.10, "extract": 0.19, "tools": 0.15, "chat": 0.08},
    "copy": {"text": 0.05, "corpus_chats": 0.09, "corpus_tasks": 0.05, "recall": 0.18, "arithmetic": 0.09, "extract": 0.19, "tools": 0.13, "chat": 0.08, "copying": 0.14},
}
# Loss weight of each kind of token (prepare.py): padding, prompt, answer, text, recalled answer, haystack.
WEIGHTS = torch.tensor([0.0, 0.1, 1.0, 1.0, 3.0, 0.15])


class Documents:
    """One group, in an endless shuffled order; workers share the documents out."""

    def __init__(self, folder, name, worker, workers):
        self.tokens, self.kinds, self.starts = (np.load(folder / f"{name}.{k}.npy", mmap_mode="r") for k in ("tokens", "kinds", "starts"))
        self.mine = np.arange(worker, len(self.starts) - 1, workers)
        self.rng = np.random.default_rng(worker)
        self.order = iter(())

    def next(self):
        i = next(self.order, None)
        if i is None:
            self.order = iter(self.rng.permutation(self.mine).tolist())
            i = next(self.order)
        a, b = self.starts[i], self.starts[i + 1]
        return self.tokens[a:b], self.kinds[a:b]


class Stream(IterableDataset):
    """Flat batches of `size` tokens; only the last document of a batch may be cut."""

    def __init__(self, folder, size, batches, decay_from, mixes):
        self.folder, self.size, self.batches, self.mixes = folder, size, batches, [MIXES[m] for m in mixes]
        # Shared with the worker processes, because a short run moves it.
        self.decay_from = torch.tensor(decay_from).share_memory_()

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        groups = {g: Documents(self.folder, g, worker, workers) for g in set().union(*self.mixes)}
        used = dict.fromkeys(groups, 0)
        for i in range(worker, self.batches, workers):
            yield self.batch(groups, used, self.mixes[i >= self.decay_from.item()])

    def batch(self, groups, used, mix):
        docs, total = [], 0
        while total < self.size:
            g = min(mix, key=lambda g: used[g] / mix[g])
            tokens, kinds = groups[g].next()
            tokens, kinds = tokens[: self.size - total], kinds[: self.size - total]
            docs.append((tokens, kinds))
            total += len(tokens)
            used[g] += len(tokens)
        # The balance of another mix must not decide the next batches.
        floor = min(used[g] / mix[g] for g in mix)
        used.update({g: min(used[g], (floor + self.size) * mix[g]) for g in mix})
        cu = np.cumsum([0] + [len(t) for t, _ in docs])
        return tuple(torch.from_numpy(np.concatenate([d[i] for d in docs]).astype(np.int64)) for i in (0, 1)) + (torch.from_numpy(cu.astype(np.int32)),)


def targets(tokens, kinds, cu, ahead, late=0):
    """The tokens `ahead` positions on, and their loss weights: 0 across documents and at the first `late` of each."""
    weight = WEIGHTS.to(tokens.device)[kinds].roll(-ahead)
    for k in range(1, ahead + 1):
        weight[(cu[1:] - k).clamp(min=0)] = 0
    for k in range(late):
        weight[(cu[:-1] + k).clamp(max=len(tokens) - 1)] = 0
    return tokens.roll(-ahead), weight


def weighted_loss(h, embedding, target, weight):
    logits = (h @ embedding.T).float()
    return (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum()


def orthogonal(g):
    """Newton-Schulz iteration towards the nearest orthogonal matrix (Muon), for a stack of matrices."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]:
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Optimizer:
    """Float32 masters of bf16 working weights. Muon for stacks of equal matrices, AdamW for the rest."""

    def __init__(self, model, lr, decay=0.1):
        self.lr, self.decay = lr, decay
        named = dict(model.named_parameters())
        self.embed = named["model.embed_tokens.weight"]
        self.embed_master = self.embed.detach().clone()
        stacks = {}
        for name, p in named.items():
            if p.ndim == 2 and p is not self.embed:
                stacks.setdefault(tuple(p.shape), []).append(p)
        self.stacks = [{"params": ps, "master": torch.stack([p.detach() for p in ps]), "momentum": torch.zeros(len(ps), *shape, device=ps[0].device)} for shape, ps in stacks.items()]
        rest = [p for p in named.values() if p.ndim != 2]
        self.adam = torch.optim.AdamW([{"params": [self.embed_master]}, {"params": rest}], lr=lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0, fused=self.embed.is_cuda)
        for p in named.values():
            if p.ndim == 2:
                p.data = p.data.bfloat16()

    @torch.no_grad()
    def step(self, scale, quantise):
        lr = self.lr * scale
        for s in self.stacks:
            g = torch.stack([p.grad for p in s["params"]]).float()
            s["momentum"].lerp_(g, 0.05)
            update = orthogonal(g.lerp(s["momentum"], 0.95)).float()
            # Gives the update the size an Adam update would have, so one rate serves both.
            size = 0.2 * max(g.shape[-2:]) ** 0.5
            s["master"].mul_(1 - lr * self.decay).sub_(update, alpha=lr * size)
        self.embed_master.grad = self.embed.grad.float()
        for group in self.adam.param_groups:
            group["lr"] = lr * 0.7
        self.adam.step()
        self.refresh(quantise)

    @torch.no_grad()
    def refresh(self, quantise):
        fake = quant.fake if quantise else lambda w, bits: w
        for s in self.stacks:
            for p, w in zip(s["params"], fake(s["master"], quant.BITS).unbind()):
                p.copy_(w)
        self.embed.copy_(fake(self.embed_master, quant.EMBED_BITS))


def compile_parts():
    """Compiles what lies between the attention kernels, and the loss; layers of a kind share the code."""
    global weighted_loss
    torch._dynamo.config.cache_size_limit = 64
    DecoderLayer.before = torch.compile(DecoderLayer.before, dynamic=False)
    DecoderLayer.after = torch.compile(DecoderLayer.after, dynamic=False)
    weighted_loss = torch.compile(weighted_loss, dynamic=False)


def losses(model, tokens, kinds, cu, device, depth):
    """Loss of the next token, and of each token that the MTP layer drafts after it.

    After the first, the layer is fed as in the engine: its own hidden state of the position before, after its norm,
    and the next token. The engine's keys of earlier positions come from the trunk's hidden states; here they come from the
    same pass, which is nearly that and needs no other attention."""
    batch = Batch(None, model, device, cu)
    tokens, kinds = tokens.to(device, non_blocking=True), kinds.to(device, non_blocking=True)
    h = model.hidden(tokens, batch)
    embedding = model.model.embed_tokens.weight
    out = [weighted_loss(h, embedding, *targets(tokens, kinds, batch.cu_long, 1))]
    for k in range(depth):
        h = model.mtp_hidden(h.roll(1, 0) if k else h, tokens.roll(-1), batch)
        out.append(weighted_loss(h, embedding, *targets(tokens, kinds, batch.cu_long, 2, late=k)))
    return out


def rehearse(model, size, device, depth):
    """One step on noise, so that all kernels are compiled before the data is ready."""
    cu = torch.arange(0, size + 1, 512, dtype=torch.int32)
    sum(losses(model, torch.randint(0, 8000, (size,)), torch.full((size,), 3), cu, device, depth)).backward()
    model.zero_grad(set_to_none=True)


def rate(step, steps, warmup, decay_from):
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 if step < decay_from else max(0.02, (steps - step) / (steps - decay_from))


def main(args):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    started = time.time()
    model = Merlin(Config(**json.loads(args.config))).to(device)
    if args.init:
        model.load_state_dict(load(args.init, device)[0])
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    optimizer = Optimizer(model, args.lr)
    if device == "cuda" and not args.eager:
        compile_parts()
    if args.wait:
        rehearse(model, args.tokens, device, args.mtp_depth)
        print(f"compiled in {time.time() - started:.0f} s", flush=True)
        while not (args.data / "done").exists():
            time.sleep(0.5)
    steps = args.steps
    decay_from, quantise_from = int(steps * args.decay_from), int(steps * args.quantise_from)
    stream = Stream(args.data, args.tokens, args.steps * args.accumulate, decay_from * args.accumulate, args.mixes)
    loader = iter(DataLoader(stream, batch_size=None, num_workers=args.workers, pin_memory=device == "cuda", prefetch_factor=4 if args.workers else None))
    begun = mark = time.time()
    saved, seen = time.time(), 0
    log, logged = torch.zeros(1 + args.mtp_depth, device=device), 0
    for step in range(args.steps):
        if step == steps:
            break
        if step == 100 and args.minutes:
            # Fit the available time: keep the shape of the schedule, with fewer steps if need be.
            torch.cuda.synchronize() if device == "cuda" else None
            steps = min(steps, int(100 + (args.minutes * 60 - (time.time() - started)) / ((time.time() - timed) / 80)))
            decay_from, quantise_from = int(steps * args.decay_from), int(steps * args.quantise_from)
            stream.decay_from.fill_(decay_from * args.accumulate)
            print(f"{steps} steps", flush=True)
        if step == 20:
            timed = time.time()
        mtp_weight = args.mtp if step < decay_from else args.mtp_late
        for _ in range(args.accumulate):
            tokens, kinds, cu = next(loader)
            loss, *mtp = losses(model, tokens, kinds, cu, device, args.mtp_depth)
            # Each depth weighs half of the one before.
            ((loss + mtp_weight * sum(m * 0.5**k for k, m in enumerate(mtp))) / args.accumulate).backward()
            log += torch.stack([loss, *mtp]).detach() / args.accumulate
            seen += len(tokens)
        optimizer.step(rate(step, steps, args.warmup, decay_from), step >= quantise_from)
        model.zero_grad(set_to_none=True)
        if (step + 1) % args.log == 0 or step < 3:
            n, logged = step + 1 - logged, step + 1
            mean, *mtp = (log / n).tolist()
            log.zero_()
            now = time.time()
            print(f"step {step + 1} loss {mean:.4f} mtp {' '.join(f'{m:.4f}' for m in mtp)} rate {rate(step, steps, args.warmup, decay_from):.3f} {'4-bit ' if step >= quantise_from else ''}{n * args.accumulate * args.tokens / (now - mark) / 1e3:.0f}k tokens/s {now - begun:.0f} s", flush=True)
            mark = now
        if time.time() - saved > args.save_every * 60:
            save(model, optimizer, args.out)
            saved = mark = time.time()
    save(model, optimizer, args.out, {"steps": steps, "tokens": seen, "seconds": round(time.time() - begun), "mixes": args.mixes, "tokens_per_step": args.tokens * args.accumulate, "lr": args.lr, "decay_from": args.decay_from, "quantise_from": args.quantise_from})


def save(model, optimizer, out, report=None):
    """Writes the masters (not their 4-bit shadows) in the published layout."""
    optimizer.refresh(False)
    save_hub({k: v.detach() for k, v in model.state_dict().items()}, model.config, out)
    if report:
        (out / "training.json").write_text(json.dumps(report) + "\n")
    print("saved", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="output of prepare.py")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--init", type=Path, help="start from the weights of this folder, in either layout")
    p.add_argument("--mixes", nargs=2, default=["flat", "decay"], choices=list(MIXES), help="data before and during the decay")
    p.add_argument("--wait", action="store_true", help="compile first, then wait for prepare.py to finish")
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--tokens", type=int, default=81920, help="tokens of one forward pass")
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=60)
    p.add_argument("--decay-from", type=float, default=0.65)
    p.add_argument("--quantise-from", type=float, default=0.78)
    p.add_argument("--mtp", type=float, default=0.3, help="weight of the MTP loss")
    p.add_argument("--mtp-late", type=float, default=0.5, help="the same during the decay")
    p.add_argument("--mtp-depth", type=int, default=1, help="tokens that the MTP layer learns to draft in a row")
    p.add_argument("--minutes", type=float, help="shorten the run to fit this time")
    p.add_argument("--log", type=int, default=50)
    p.add_argument("--save-every", type=float, default=4, help="minutes")
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--config", default="{}", help="JSON with changes to the model's shape")
    p.add_argument("--eager", action="store_true", help="do not compile")
    main(p.parse_args())
