"""Trains merlin's vision tower on generated pictures, on one GPU, through the frozen language model.

    python3 tools/merlin/vision/train.py --minutes 8 --out OUT

Only the tower learns: the loss is the language model's on the answers, and its gradient passes through the model's
4-bit weights unchanged. Until late in the run helper losses name what each patch shows. From `--quantise-from` on, the
tower's matrices are seen as their 4-bit selves. Everything follows the clock: the run ends, with its results written,
within `--minutes`. `--init` goes on from an earlier run's tower.safetensors.
"""

import argparse
import json
import sys
import time
from pathlib import Path

STARTED = time.time()
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import export  # noqa: E402
import quant  # noqa: E402
from model import DecoderLayer, Merlin  # noqa: E402
from train import orthogonal  # noqa: E402
from vision import language, scenes, weights  # noqa: E402
from vision.batches import LONGEST, PAD, Sizes, Source, Text  # noqa: E402
from vision.pixels import MERGE, normalise  # noqa: E402
from vision.tower import Block, Config, Merger, Tower  # noqa: E402

MERLIN = HERE.parents[2] / "models" / "merlin"
EXPORTED = "vision-4bit.safetensors"
# Held-out sets: name -> (scene, kinds of question). Pictures and sentences are new. The figures with an aim come first.
SETS = {
    "colours": ("one", {"the_colour", "colour_of"}), "colours, several shapes": ("several", {"colour_of"}),
    "shapes": ("one", {"the_shape", "shape_of"}), "shapes, several shapes": ("several", {"shape_of"}),
    "counts": ("count", {"count_shape", "count_colour", "count_all"}), "digits": ("digits", {"read_number"}), "words": ("words", {"read_word"}),
    "yes or no": ("several", {"exists"}), "left and right": ("several", {"left", "right"}), "description": ("several", {"describe"}),
    "signs": ("sign", {"read_number", "read_word"}), "charts, highest and lowest": ("chart", {"bar_high", "bar_low"}),
    "charts, values": ("chart", {"bar_value"}), "charts, bars counted": ("chart", {"bar_count"}), "charts, colours": ("chart", {"bar_colour"}),
}
# Measured once more with sentences whose phrases training never has.
UNFAMILIAR = ("colours", "colours, several shapes", "shapes", "shapes, several shapes", "counts", "digits", "words")
ORDERS = {**{name: (*order, "eval") for name, order in SETS.items()}, **{f"{name}, unfamiliar wording": (*SETS[name], "unfamiliar") for name in UNFAMILIAR}}


class Optimizer:
    """Float32 masters of the tower's matrices, Muon for stacks of equal ones; AdamW for everything else."""

    def __init__(self, tower, helpers, lr, decay=0.05):
        self.lr, self.decay = lr, decay
        stacks, rest = {}, [*helpers.parameters()]
        for name, p in tower.named_parameters():
            if p.ndim == 2 and name != "pos_embed.weight":
                stacks.setdefault((tuple(p.shape), weights.is_quantised(name)), []).append(p)
            else:
                rest.append(p)
        self.stacks = []
        for (shape, quantised), ps in stacks.items():
            master = torch.stack([p.detach().float() for p in ps])
            self.stacks.append({"params": ps, "master": master, "momentum": torch.zeros_like(master), "quantised": quantised})
            for p in ps:
                p.data = p.data.to(torch.bfloat16 if p.is_cuda else torch.float32)
        self.adam = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0, fused=rest[0].is_cuda)
        self.rest = rest

    @torch.no_grad()
    def step(self, scale, quantise):
        lr = self.lr * scale
        for s in self.stacks:
            g = torch.stack([p.grad for p in s["params"]]).float().nan_to_num(0, 0, 0)
            s["momentum"].lerp_(g, 0.05)
            update = orthogonal(g.lerp(s["momentum"], 0.95)).float()
            # Gives the update the size an Adam update would have, so one rate serves both.
            s["master"].mul_(1 - lr * self.decay).sub_(update, alpha=lr * 0.2 * max(g.shape[-2:]) ** 0.5)
        for p in self.rest:
            if p.grad is not None:
                p.grad.nan_to_num_(0, 0, 0)
        for group in self.adam.param_groups:
            group["lr"] = lr * 0.7
        self.adam.step()
        self.refresh(quantise)

    @torch.no_grad()
    def refresh(self, quantise):
        for s in self.stacks:
            seen = quant.fake(s["master"], quant.BITS) if quantise and s["quantised"] else s["master"]
            for p, w in zip(s["params"], seen.unbind()):
                p.copy_(w)

    def state(self, tower):
        """The tower's state with the masters instead of what they are seen as."""
        masters = {id(p): w for s in self.stacks for p, w in zip(s["params"], s["master"].unbind())}
        return {name: masters.get(id(p), p).detach() for name, p in tower.named_parameters()}


class Helpers(nn.Module):
    """Losses that name what a patch shows: from the middle of the tower, and in the language model's own words from its end."""

    def __init__(self, tower, embedding, text):
        super().__init__()
        hidden = tower.config.hidden_size
        self.thing, self.hue = nn.Linear(hidden, len(scenes.THINGS)), nn.Linear(hidden, len(scenes.COLOURS) + 1)
        names = [t if len(t) == 1 else f" {t}" for t in scenes.THINGS[1:]] + [f" {c}" for c in scenes.COLOURS]
        said = [text.vocabulary[n] if len(n) == 1 else text.encode(n)[0] for n in names]
        self.register_buffer("said", F.normalize(embedding[torch.tensor(said, device=embedding.device)].float(), dim=-1), persistent=False)
        for name, n in (("thing", len(scenes.THINGS)), ("hue", len(scenes.COLOURS) + 1)):
            self.register_buffer(f"{name}_weight", torch.tensor([0.1] + [1.0] * (n - 1)), persistent=False)

    def named(self, seen, thing, hue):
        x = seen.float()
        return F.cross_entropy(self.thing(x), thing, self.thing_weight) + 0.5 * F.cross_entropy(self.hue(x), hue, self.hue_weight)

    def spoken(self, features, thing, hue):
        """Each picture token should resemble the words for what its patches show."""
        things, hues = (t.view(-1, MERGE**2) for t in (thing, hue))
        shown = torch.zeros(len(features), len(self.said) + 2, device=features.device)
        shown.scatter_(1, things, 1.0)
        shown.scatter_(1, torch.where(hues > 0, hues + len(scenes.THINGS), 0), 1.0)
        shown = torch.cat([shown[:, 1 : len(scenes.THINGS)], shown[:, len(scenes.THINGS) + 1 :]], 1)
        total = shown.sum(1)
        logits = 8 * F.normalize(features.float(), dim=-1) @ self.said.T
        loss = -(shown * logits.log_softmax(-1)).sum(1) / total.clamp(min=1)
        return (loss * (total > 0)).sum() / (total > 0).sum().clamp(min=1)


class Trainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.text = Text(args.merlin)
        state, config = export.load(args.merlin, device)
        self.model = Merlin(config).to(device)
        self.model.load_state_dict(state)
        self.model.requires_grad_(False)
        if device == "cuda":
            for p in self.model.parameters():
                if p.ndim == 2:
                    p.data = p.data.bfloat16()
        embedding = self.model.model.embed_tokens.weight
        self.section = json.loads((args.merlin / "config.json").read_text())["text_config"]["rope_parameters"]["mrope_section"]
        self.tower = self.new_tower(config, embedding).to(device)
        self.helpers = Helpers(self.tower, embedding, self.text).to(device)
        self.load_helpers()
        self.optimizer = Optimizer(self.tower, self.helpers, args.lr)
        self.rows, self.copies = None, torch.cuda.Stream() if device == "cuda" else None

    def new_tower(self, config, embedding):
        if self.args.init:
            hub = weights.load(str(self.args.init))
            tower = Tower(weights.config_of(hub))
            tower.load_state_dict(weights.from_hub(hub))
            return tower
        tower = Tower(Config(**{"out_hidden_size": config.hidden_size, **json.loads(self.args.config)}))
        with torch.no_grad():
            # Features begin about as large as embedded words.
            tower.merger.linear_fc2.weight.mul_(2 * embedding.float().pow(2).mean().sqrt().item())
        return tower

    def load_helpers(self):
        path = self.args.init and self.args.init.with_name("helpers.safetensors")
        if path and path.exists():
            self.helpers.load_state_dict(weights.load(str(path)), strict=False)

    def to_device(self, arrays):
        """A batch's tensors on the device, copied beside what runs there; `wait` says when they are whole."""
        b = {k: torch.from_numpy(v) for k, v in arrays.items()}
        # Found here, because on the GPU it would stop the queue of kernels.
        b["where"] = b["answer"].flatten().nonzero()[:, 0]
        if self.device == "cpu":
            # The workers fill the arrays again while these are in use.
            return {k: v.clone() for k, v in b.items()}, None
        with torch.cuda.stream(self.copies):
            b = {k: v.to(self.device, non_blocking=True) for k, v in b.items()}
            return b, self.copies.record_event()

    def arrived(self, staged):
        """The tensors of `to_device`, for use by the next kernels."""
        b, event = staged
        if event:
            torch.cuda.current_stream().wait_event(event)
            for v in b.values():
                v.record_stream(torch.cuda.current_stream())
        return b

    def forward(self, b):
        """(loss on the answers, right or wrong per learnt token, its predictions, where they are, the tower's features and middle)."""
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        pixels = normalise(b["patches"]).to(dtype)
        features, seen = self.tower(pixels, b["place"], b["cu"], LONGEST * MERGE**2, max(1, self.tower.config.depth * 5 // 8))
        ids, position = b["ids"].flatten().long(), b["position"]
        self.rows = self.rows.place(self.model, position) if self.rows else language.Rows(self.model, position, self.section)
        where = b["where"]
        x = language.splice(self.model, ids, b["spot"].long(), features)
        logits = language.answer_logits(self.model, x, self.rows, where)
        target = ids[where + 1]
        return F.cross_entropy(logits, target), logits.argmax(-1), target, where, features, seen

    def step(self, b, progress, steps):
        loss, said, target, _, features, seen = self.forward(b)
        thing, hue = b["thing"].long(), b["hue"].long()
        strength = self.args.helpers * max(0.0, 1 - progress / 0.7)
        total, parts = loss, [loss.detach(), (said == target).float().mean()]
        if strength > 0:
            named, spoken = self.helpers.named(seen, thing, hue), self.helpers.spoken(features, thing, hue)
            total = total + strength * (named + 0.5 * spoken)
            parts += [named.detach(), spoken.detach()]
        total.backward()
        self.optimizer.step(rate(progress, steps, self.args), progress >= self.args.quantise_from)
        for p in (*self.tower.parameters(), *self.helpers.parameters()):
            p.grad = None
        return torch.stack([p.float() for p in (parts + [loss.new_zeros(())] * 2)[:4]])

    def exact(self, arrays):
        """Exact match of each row, and samples of wrong answers. With gradients on, so that nothing is compiled anew."""
        b = self.arrived(self.to_device(arrays))
        _, said, target, where, _, _ = self.forward(b)
        row, wrong = where // b["ids"].shape[1], torch.zeros(len(b["ids"]), device=self.device)
        wrong.index_add_(0, row, (said != target).float())
        bad = [self.sample(arrays, i, said[row == i].tolist(), target[row == i].tolist()) for i in wrong.nonzero()[:6, 0].tolist()]
        return 100 * (wrong == 0).float().mean().item(), bad

    def sample(self, arrays, row, said, target):
        ids = [i for i, a in zip(arrays["ids"][row].tolist(), [0, *arrays["answer"][row].tolist()]) if not a and i not in (self.text.image, PAD)]
        return {"prompt": self.text.decode(ids)[-120:], "said": self.text.decode(said), "expected": self.text.decode(target)}

    def evaluate(self, sets, most=None):
        """Name -> (exact match in percent over at most `most` batches, samples of mistakes), with the weights that the tower has now."""
        out = {}
        for name in (name for name in ORDERS if name in sets):
            parts = [self.exact(arrays) for arrays in sets[name][:most]]
            out[name] = sum(p[0] for p in parts) / len(parts), [bad for p in parts for bad in p[1]][:12]
        return out

    @torch.no_grad()
    def take_exported(self):
        """Gives the tower the weights of the file that is shipped."""
        state = weights.from_hub(weights.from_mlx(weights.load(str(self.args.out / EXPORTED))))
        for name, p in self.tower.named_parameters():
            p.copy_(state[name])

    def save(self):
        hub = weights.to_hub(self.optimizer.state(self.tower), self.tower.config)
        weights.save(self.args.out / "tower.safetensors", hub)
        weights.save(self.args.out / EXPORTED, weights.to_mlx(hub))
        weights.save(self.args.out / "helpers.safetensors", {k: v.detach().cpu().contiguous() for k, v in self.helpers.state_dict().items()})


def rate(progress, steps, args):
    """Warm-up by steps, then flat, then a straight line to nearly zero, by the clock."""
    warm = min(1.0, (steps + 1) / args.warmup)
    return warm * (1.0 if progress < args.decay_from else max(0.01, (1 - progress) / (1 - args.decay_from)))


def compile_parts():
    """Compiles what lies between the attention kernels; where that fails, the part runs uncompiled."""
    torch._dynamo.config.cache_size_limit = 64
    torch._dynamo.config.suppress_errors = True
    for owner, name in ((DecoderLayer, "before"), (DecoderLayer, "after"), (language, "delta_rule"), (Block, "before"), (Block, "after"), (Tower, "start"), (Merger, "forward")):
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=False))


def save_memory():
    """Recomputes the delta rule's intermediate values in the backward pass instead of keeping them."""
    whole = language.delta_rule
    language.delta_rule = lambda *parts: checkpoint(whole, *parts, use_reentrant=False)


class Log:
    def __init__(self, path):
        self.file = open(path, "a")

    def __call__(self, text):
        line = f"{time.time() - STARTED:6.1f} s  {text}"
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()


def pin(source, log):
    """Page-locks the workers' memory, so that copies to the GPU run at full speed."""
    try:
        for slot in source.slots:
            a = slot["patches"]
            code = torch.cuda.cudart().cudaHostRegister(a.ctypes.data, a.nbytes, 0)
            if int(code):
                raise RuntimeError(f"cudaHostRegister gave {code}")
    except Exception as e:  # noqa: BLE001
        log(f"memory is not page-locked: {e}")


class Staged:
    """The next training batch, copied to the device while the last one is computed; keeps the held-out sets aside.

    Where the workers are slower than the GPU, the batches of a short time ago are taken once more."""

    def __init__(self, trainer, source, names, recent=12):
        self.trainer, self.source, self.names = trainer, source, names
        self.sets, self.waited, self.again, self.next, self.slot, self.running = {}, 0.0, 0, None, None, []
        self.recent, self.most = [], recent

    def stage(self):
        started = time.time()
        while self.slot is None and (self.source.full.empty() is False or len(self.recent) < self.most):
            slot, order = self.source.take()
            if order is None:
                self.next, self.slot = self.trainer.to_device(self.source.slots[slot]), slot
                break
            self.keep(slot, order)
        self.waited += time.time() - started

    def keep(self, slot, order):
        self.sets.setdefault(self.names[order], []).append({k: v.copy() for k, v in self.source.slots[slot].items()})
        self.source.free.put(slot)

    def complete(self):
        """Waits for the held-out sets that are still missing, as in a very short run."""
        while sum(map(len, self.sets.values())) < len(self.names):
            slot, order = self.source.take()
            if order is None:
                self.source.free.put(slot)
            else:
                self.keep(slot, order)
        return self.sets

    def take(self):
        if self.slot is None:
            self.stage()
        if self.slot is None:
            self.again += 1
            return self.recent.pop(0)
        if self.next[1]:
            self.next[1].synchronize()
        self.source.free.put(self.slot)
        b, self.slot = self.trainer.arrived(self.next), None
        self.recent = [*self.recent[-self.most * 2 :], b]
        return b

    def bound(self):
        """Lets the program run at most two steps ahead of the GPU."""
        if self.trainer.device == "cuda":
            self.running.append(torch.cuda.current_stream().record_event())
            if len(self.running) > 2:
                self.running.pop(0).synchronize()


def train(trainer, source, names, args, log):
    """The timed loop; returns the held-out sets, which the workers make first, and the number of steps."""
    begun, end = time.time() - STARTED, args.minutes * 60 - args.reserve
    batches, totals = Staged(trainer, source, names), torch.zeros(4, device=trainer.device)
    step, logged, mark = 0, 0, time.time()
    tested = saved = mark
    while (now := time.time() - STARTED) < end and step < args.steps:
        progress = max((now - begun) / max(end - begun, 1e-9), step / args.steps)
        try:
            totals += trainer.step(batches.take(), progress, step)
        except torch.OutOfMemoryError:
            if step:
                raise
            log("out of memory: the delta rule is computed twice from now on")
            torch.cuda.empty_cache()
            save_memory()
            continue
        batches.stage()
        batches.bound()
        step += 1
        if step == 1 or time.time() - mark > args.log:
            n, spent = step - logged, time.time() - mark
            loss, right, named, spoken = (totals / n).tolist()
            log(f"step {step} loss {loss:.4f} tokens right {right:.4f} named {named:.3f} spoken {spoken:.3f} rate {rate(progress, step, args):.3f}"
                f" {'4-bit ' if progress >= args.quantise_from else ''}{n * source.sizes.rows / spent:.0f} rows/s, waited {100 * batches.waited / spent:.0f} %, again {100 * batches.again / n:.0f} %")
            totals.zero_()
            batches.waited, batches.again, logged, mark = 0.0, 0, step, time.time()
        if time.time() - tested > args.test_every:
            figures = trainer.evaluate({name: batches.sets[name] for name in SETS if name in batches.sets}, most=1)
            log("held out: " + ", ".join(f"{k} {v[0]:.1f}" for k, v in figures.items()))
            tested = time.time()
        if time.time() - saved > args.save_every:
            trainer.save()
            saved = time.time()
    return batches.complete(), step


def main(args):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    log, names = Log(args.out / "train.log"), list(ORDERS) * args.tests
    scenes.MIX.update(json.loads(args.mix))
    # Forked before the GPU is touched.
    source = Source(Sizes(args.rows), args.merlin, args.workers, args.slots, args.seed * 1000, list(ORDERS.values()) * args.tests)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        trainer = Trainer(args, device)
        log(f"{sum(p.numel() for p in trainer.tower.parameters()) / 1e6:.2f}M parameters on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}; {vars(args)}")
        if device == "cuda":
            pin(source, log)
            if not args.eager:
                compile_parts()
        sets, steps = train(trainer, source, names, args, log)
    finally:
        source.close()
    trainer.save()
    # Paths are this machine's; what is learnt depends on the other settings.
    settings = {k: str(v) for k, v in vars(args).items() if not isinstance(v, Path)}
    results = {"steps": steps, "rows": steps * args.rows, "seconds": round(time.time() - STARTED), "each": args.rows * args.tests, "args": settings}
    for label in ("bf16", "4-bit"):
        if label == "bf16":
            trainer.optimizer.refresh(False)
        else:
            trainer.take_exported()
        figures = trainer.evaluate(sets)
        log(f"held out, {label}: " + ", ".join(f"{k} {v[0]:.1f}" for k, v in figures.items()))
        results[label] = {k: round(v[0], 1) for k, v in figures.items()}
        results[f"wrong, {label}"] = {k: v[1] for k, v in figures.items()}
        (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    log("done")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--merlin", type=Path, default=MERLIN, help="folder with merlin's text weights")
    p.add_argument("--init", type=Path, help="tower.safetensors of an earlier run")
    p.add_argument("--minutes", type=float, default=8.0, help="for everything, from the start of the program")
    p.add_argument("--reserve", type=float, default=45.0, help="seconds kept for the last evaluation and for saving")
    p.add_argument("--steps", type=int, default=10**9, help="stop after so many steps at the latest")
    p.add_argument("--rows", type=int, default=256, help="conversations of one step")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--warmup", type=int, default=100, help="steps")
    p.add_argument("--decay-from", type=float, default=0.55)
    p.add_argument("--quantise-from", type=float, default=0.75)
    p.add_argument("--helpers", type=float, default=0.4, help="weight of the helper losses at the start")
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--slots", type=int, default=24, help="batches in shared memory")
    p.add_argument("--log", type=float, default=15, help="seconds")
    p.add_argument("--tests", type=int, default=4, help="batches of each held-out set in the last evaluation; those on the way use one")
    p.add_argument("--test-every", type=float, default=75, help="seconds")
    p.add_argument("--save-every", type=float, default=150, help="seconds")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--config", default="{}", help="JSON with changes to the tower's shape")
    p.add_argument("--mix", default="{}", help="JSON with changes to the shares of the scenes")
    p.add_argument("--eager", action="store_true", help="do not compile")
    main(p.parse_args())
