"""Measures merlin on held-out sets: `eval.py --model DIR --corpus DIR`.

DIR is either the folder train.py wrote (bf16) or the shipped 4-bit MLX folder, which is unpacked here.
All generation is greedy. The synthetic sets use words, schemas, tools and phrasings that training never
saw; bits per byte and the MTP figure use the corpus's validation file.
"""

import argparse
import json
import math
import random
import re
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import corpus
import export
from model import Batch, Merlin
from tasks import arithmetic, chat, copying, extract, recall, tools
from words import Words

DEPTHS = [0.1, 0.5, 0.9]
NEEDLE_TOKENS = 4096
# floor and aim of each figure, in percent
GOALS = {"needle": (80, 95), "json": (60, 85), "tool_call": (60, 85), "arithmetic": (80, 95), "mtp_acceptance": (55, 70)}


class Judge:
    def __init__(self, folder, tokenizer, device):
        state, config = export.load(folder, device)
        model = Merlin(config).to(device)
        model.load_state_dict(state)
        if device == "cuda":
            for p in model.parameters():
                if p.ndim == 2:
                    p.data = p.data.bfloat16()
        self.model, self.device = model.eval(), device
        self.tok = Tokenizer.from_file(str(Path(tokenizer) / "tokenizer.json"))
        self.render = corpus.template()
        self.stop = {self.tok.token_to_id("<|im_end|>"), self.tok.token_to_id("<|endoftext|>")}

    def encode(self, text):
        return self.tok.encode(text).ids

    def prompt(self, messages, tools=None, think=False):
        return self.encode(self.render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=think))

    def answers(self, prompts, max_new, batch_tokens=200_000):
        """Greedy answers as token lists, in batches that fit the memory."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        out, group = [None] * len(prompts), []
        for i in order + [None]:
            if group and (i is None or (len(group) + 1) * (len(prompts[i]) + max_new) > batch_tokens):
                for j, a in zip(group, self.model.generate([prompts[j] for j in group], max_new, self.stop)):
                    out[j] = a
                group = []
            if i is not None:
                group.append(i)
        return out

    def text(self, ids):
        return self.tok.decode(ids, skip_special_tokens=True)


def synthetic(make, seed, n):
    w = Words("eval", seed)
    return [make(w) for _ in range(n)]


def question(r):
    """The messages before the answer."""
    return r["messages"][:-1]


def score(judge, records, right, max_new, think=False):
    prompts = [judge.prompt(question(r), r.get("tools"), think) for r in records]
    texts = [judge.text(a) for a in judge.answers(prompts, max_new)]
    verdicts = [right(t, r["answer"]) for t, r in zip(texts, records)]
    wrong = [{"question": r["messages"][-2]["content"][-300:], "said": t[-300:], "expected": r["answer"]} for t, r, v in zip(texts, records, verdicts) if not v]
    return verdicts, wrong[:8]


def loads(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def same_call(text, expected):
    """Exactly one call, with the right name and arguments."""
    calls = re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.S)
    return len(calls) == 1 and loads(calls[0]) == expected


def same_number(text, expected):
    """The last number after the reasoning."""
    numbers = re.findall(r"-?\d+", text.split("</think>")[-1].replace(" - ", " minus "))
    return "</think>" in text and bool(numbers) and int(numbers[-1]) == expected


def copies(judge, validation, n, out):
    """Texts, lists and code to repeat exactly, and to repeat with one named edit."""
    from prepare import Filler

    filler = Filler.__new__(Filler)
    filler.texts = [r["text"] for r in validation if "text" in r]
    for name, edit in (("copying", False), ("editing", True)):
        records = synthetic(lambda w: copying.make(w, filler.text, "eval", edit), name, n)
        verdicts, out["wrong"][name] = score(judge, records, str.__eq__, 640)
        out[name] = percent(verdicts)


def needles(judge, validation, n, out):
    texts = [r["text"] for r in validation if "text" in r]

    def filler(w, size):
        picked = []
        while sum(map(len, picked)) < size:
            picked.append(w.r.choice(texts))
        return "\n\n".join(picked)

    count = lambda text: len(judge.encode(text))
    for depth in DEPTHS:
        records = synthetic(lambda w: recall.needle(w, count, filler, NEEDLE_TOKENS, depth), f"needle{depth}", n)
        verdicts, wrong = score(judge, records, lambda text, v: v in text, 40)
        out[f"needle_at_{depth:.0%}"] = percent(verdicts)
        out["wrong"][f"needle_at_{depth:.0%}"] = wrong
    out["needle"] = min(out[f"needle_at_{d:.0%}"] for d in DEPTHS)
    out["needle_prompt_tokens"] = len(judge.prompt(question(records[0])))


def percent(verdicts):
    return round(100 * sum(verdicts) / max(1, len(verdicts)), 1)


@torch.no_grad()
def bits_per_byte(judge, validation, out):
    """Text: every token. Chats: what the assistant says."""
    from prepare import ANSWER, PROMPT, Encoder

    encoder = Encoder.__new__(Encoder)
    ids = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "assistant")
    encoder.im_start, encoder.im_end, encoder.think, encoder.end_think, encoder.assistant = (judge.tok.token_to_id(t) for t in ids)
    import numpy as np

    nats, size = {"text": 0.0, "chat": 0.0}, {"text": 0, "chat": 0}
    for r in validation:
        kind = "text" if "text" in r else "chat"
        text = corpus.text_of(r, judge.render)
        tokens = judge.encode(text)[: judge.model.config.max_position_embeddings]
        t = torch.tensor(tokens, device=judge.device)
        h = judge.model.hidden(t, Batch([len(t)], judge.model, judge.device))
        loss = F.cross_entropy(judge.model.head(h[:-1]).float(), t[1:], reduction="none")
        if kind == "chat":
            counted = np.flatnonzero(encoder.kinds(np.array(tokens + [encoder.im_end], np.uint16), PROMPT, ANSWER)[1 : len(tokens)] == ANSWER)
        else:
            counted = np.arange(len(tokens) - 2)
        nats[kind] += loss[torch.from_numpy(counted).to(t.device)].sum().item()
        # The end-of-turn token costs nats but has no bytes.
        size[kind] += len(judge.tok.decode([tokens[i + 1] for i in counted], skip_special_tokens=True).encode()) + (len(judge.tok.decode(tokens[:1]).encode()) if kind == "text" else 0)
    for kind in nats:
        out[f"bits_per_byte_{kind}"] = round(nats[kind] / math.log(2) / max(1, size[kind]), 4)
    out["bits_per_byte"] = round(sum(nats.values()) / math.log(2) / max(1, sum(size.values())), 4)


@torch.no_grad()
def acceptance(judge, validation, n, out):
    """How often the MTP head's greedy draft of the token after next is what the model then says, and, if so, its next."""
    chats = [r for r in validation if "messages" in r]
    random.Random(9).shuffle(chats)
    prompts = []
    for r in chats[:n]:
        last = max(i for i, m in enumerate(r["messages"]) if m["role"] == "assistant")
        prompts.append(judge.prompt(r["messages"][:last], r.get("tools"))[-3000:])
    said = judge.answers(prompts, 128)
    hits = drafts = second_hits = seconds = 0
    for p, a in zip(prompts, said):
        a = a + [judge.tok.token_to_id("<|im_end|>")] if len(a) < 128 else a
        t = torch.tensor(p + a, device=judge.device)
        batch = Batch([len(t)], judge.model, judge.device)
        h = judge.model.hidden(t, batch)
        m = judge.model.mtp_hidden(h, t.roll(-1), batch)
        # Position i drafts token i+2; the first token of the answer is the model's own.
        first = len(p) - 1
        draft = judge.model.head(m[first : len(t) - 2]).argmax(-1)
        right = draft == t[first + 2 :]
        hits += right.sum().item()
        drafts += len(draft)
        draft = judge.model.head(second_drafts(judge.model, h, m, t, batch)[first + 1 : len(t) - 2]).argmax(-1)
        second_hits += (right[:-1] & (draft == t[first + 3 :])).sum().item()
        # A first draft at the very end has no second.
        seconds += right[:-1].sum().item()
    out["mtp_acceptance"], out["mtp_drafts"] = round(100 * hits / max(1, drafts), 1), drafts
    out["mtp_second_acceptance"] = round(100 * second_hits / max(1, seconds), 1)


def second_drafts(model, h, m, tokens, batch):
    """The MTP layer's hidden states when it is fed its own of the position before, `m`. As in the engine it attends to
    its keys of that one position and, for those before, to the keys made of the trunk's hidden states `h`."""
    layer, following = model.mtp.layers[0], model.embed(tokens.roll(-1))
    x = model.mtp.join(following, m.roll(1, 0))
    q, k, v, gate = layer.before(x, batch.pos, batch.rope)
    _, past_k, past_v, _ = layer.before(model.mtp.join(following, h), batch.pos, batch.rope)
    k, v, past_k, past_v = (s.float().transpose(0, 1).repeat_interleave(q.shape[1] // s.shape[1], 0) for s in (k, v, past_k, past_v))
    q = q.float().transpose(0, 1) * q.shape[-1] ** -0.5
    scores = (q @ past_k.mT).masked_fill(torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(), float("-inf"))
    scores.diagonal(dim1=1, dim2=2).copy_((q * k).sum(-1))
    p = scores.softmax(-1)
    o = p.tril(-1) @ past_v + p.diagonal(dim1=1, dim2=2)[..., None] * v
    return model.mtp.norm(layer.after(x, o.transpose(0, 1).to(x.dtype), gate))


def samples(judge):
    """A few answers to read."""
    needle = "The secret code for amber-fox is 7421."
    asks = [
        ([{"role": "user", "content": "Hi! Who are you?"}], None, False), ([{"role": "user", "content": "17 + 25"}], None, True), ([{"role": "user", "content": "What is 83 - 47?"}], None, True),
        ([{"role": "user", "content": "Tell me a short story about a fox."}], None, False), ([{"role": "user", "content": "Write a story about a robot and a bird."}], None, True),
        ([{"role": "user", "content": "Extract name, age and city as JSON.\n\nMaria Keller is 34 years old and lives in Hamburg."}], None, False),
        ([{"role": "user", "content": f"I like rain. {needle} I also like tea.\n\nWhat is the secret code for amber-fox?"}], None, False),
        ([{"role": "user", "content": "What is the weather in Lisbon?"}], [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}], False),
        ([{"role": "user", "content": "Why is the sky blue?"}], None, False), ([{"role": "user", "content": "What should I cook tonight?"}], None, False), ([{"role": "user", "content": "What is the capital of France?"}], None, True),
    ]
    said = judge.answers([judge.prompt(*a) for a in asks], 220)
    return [{"ask": a[0][-1]["content"], "thinking": a[2], "said": judge.text(s)} for a, s in zip(asks, said)]


def main(args):
    begun = time.time()
    judge = Judge(args.model, args.tokenizer or args.model, args.device)
    validation = list(corpus.read(args.corpus, "val"))
    n, out = args.n, {"model": args.model.name, "n": args.n, "validation_records": min(args.records, len(validation)), "wrong": {}}
    bits_per_byte(judge, random.Random(4).sample(validation, min(args.records, len(validation))), out)
    for name, records, right, max_new, think in (
        ("json_known_schema", synthetic(lambda w: extract.make(w, "eval", False, known=True), 1, n // 2), lambda t, d: loads(t) == d, 160, False),
        ("json_new_schema", synthetic(lambda w: extract.make(w, "eval", False, known=False), 4, n // 2), lambda t, d: loads(t) == d, 160, False),
        ("tool_call", synthetic(lambda w: tools.make(w, "eval", False), 2, n), same_call, 120, False),
        ("arithmetic", synthetic(lambda w: arithmetic.make(w, "eval"), 3, n), same_number, 260, True),
    ):
        verdicts, out["wrong"][name] = score(judge, records, right, max_new, think)
        out[name] = percent(verdicts)
    out["json"] = round((out["json_known_schema"] + out["json_new_schema"]) / 2, 1)
    copies(judge, validation, n, out)
    needles(judge, validation, max(1, n // 2), out)
    acceptance(judge, validation, n, out)
    out["samples"] = samples(judge)
    out["seconds"] = round(time.time() - begun)
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")
    print(f"{'figure':22s} {'value':>8s} floor aim   ({args.model}, n = {n}, {out['seconds']} s)")
    for k, v in out.items():
        if isinstance(v, float):
            floor, aim = GOALS.get(k, GOALS["needle"] if k.startswith("needle_at") else ("", ""))
            print(f"{k:22s} {v:8} {floor!s:>5s} {aim!s:>3s}")
    if args.verbose:
        for s in out["samples"]:
            print(f"\n> {s['ask']}{' (thinking)' if s['thinking'] else ''}\n{s['said']}")
        for k, v in out["wrong"].items():
            for x in v[:3]:
                print(f"\nwrong {k}: {x['question'][-160:]!r}\n  said {x['said']!r}\n  expected {x['expected']!r}")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--corpus", required=True)
    p.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json, if not the model's")
    p.add_argument("--n", type=int, default=300, help="examples of each task (half of it per needle depth)")
    p.add_argument("--records", type=int, default=10**6, help="validation records to read for bits per byte")
    p.add_argument("--json", type=Path, help="write all figures, samples and some mistakes here")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--verbose", action="store_true")
    main(p.parse_args())
