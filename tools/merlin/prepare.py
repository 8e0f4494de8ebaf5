"""Turns the corpus and freshly generated synthetic tasks into token arrays, one set per group.

Each group becomes GROUP.{tokens,kinds,starts}.npy: `tokens` (uint16), `kinds` (uint8, what each token is) and
`starts` (first token of each document, and the end).
"""

import argparse
import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer

import corpus
from tasks import arithmetic, chat, copying, extract, recall, tools
from words import Words, open_words

MAX_LEN = 5120
# Kinds of tokens; train.py weighs the loss of each.
PAD, PROMPT, ANSWER, TEXT, RECALL_ANSWER, HAYSTACK = range(6)
# Documents generated at scale 1.
COUNTS = {"recall": 60000, "arithmetic": 300000, "extract": 400000, "tools": 200000, "chat": 200000, "copying": 250000}
BATCH = 500


class Encoder:
    def __init__(self, folder):
        self.tok = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.render = corpus.template()
        ids = {t: self.tok.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "assistant")}
        self.im_start, self.im_end, self.think, self.end_think, self.assistant = ids.values()

    def __call__(self, records, group):
        texts = [corpus.text_of(r, self.render) for r in records]
        docs = []
        for r, e in zip(records, self.tok.encode_batch(texts)):
            ids = np.array(e.ids, dtype=np.uint16)
            if "messages" not in r:
                docs += [(ids[i : i + MAX_LEN], np.full(len(ids[i : i + MAX_LEN]), TEXT, np.uint8)) for i in range(0, len(ids), MAX_LEN)]
            elif len(ids) <= MAX_LEN:
                docs.append((ids, self.kinds(ids, *((HAYSTACK, RECALL_ANSWER) if group == "recall" else (PROMPT, ANSWER)))))
            elif group != "recall":
                docs.append((ids[:MAX_LEN], self.kinds(ids, PROMPT, ANSWER)[:MAX_LEN]))
        return docs

    def kinds(self, ids, prompt, answer):
        """Marks the assistant's tokens; the opening think tags are part of the prompt."""
        out = np.full(len(ids), prompt, np.uint8)
        ends = np.flatnonzero(ids == self.im_end)
        for s in np.flatnonzero((ids[:-1] == self.im_start) & (ids[1:] == self.assistant)):
            begin = s + 3
            if ids[begin] == self.think:
                begin += 4 if ids[begin + 2] == self.end_think else 2
            end = ends[np.searchsorted(ends, s)]
            out[begin : end + 1] = answer
        return out


class Filler:
    """Corpus text and small talk for the recall tasks to hide facts in."""

    def __init__(self, folder, seed):
        rng = random.Random(seed)
        self.texts = [r["text"] for n in corpus.TEXT for r in corpus.read(folder, n) if rng.random() < 0.5]
        self.pairs = []
        for n in ("dialogue", "instruct"):
            for r in corpus.read(folder, n):
                m = [x for x in r["messages"] if x["role"] != "system"]
                self.pairs += [(u["content"], a["content"]) for u, a in zip(m[::2], m[1::2]) if len(u["content"]) + len(a["content"]) < 500 and rng.random() < 0.3]

    def text(self, w, size):
        out, total = [], 0
        while total < size:
            t = w.r.choice(self.texts)
            out.append(t)
            total += len(t) + 2
        text = "\n\n".join(out)
        start = text.find(". ", w.r.randrange(max(1, len(out[0]) // 2))) + 2
        return text[start : start + size].rsplit(". ", 1)[0] + "."

    def chats(self, w, size):
        out, total = [], 0
        while total < size:
            out.append(w.r.choice(self.pairs))
            total += sum(map(len, out[-1])) + 40
        return out


def makers(filler):
    return {
        "recall": lambda w: recall.make(w, filler.text, filler.chats),
        "arithmetic": arithmetic.make,
        "extract": lambda w: extract.make(w, filler=filler.text),
        "tools": lambda w: tools.make(w, talk=chat.quick),
        "chat": chat.make,
        "copying": lambda w: copying.make(w, filler.text),
    }


def generate(job):
    group, seed, n = job
    w = Words("train", f"{SEED}{group}{seed}", open=0.6 if group in ("recall", "extract", "tools", "copying") else 0.0)
    make = makers(FILLER)[group]
    return group, ENCODER([make(w) for _ in range(n)], group)


def encode(job):
    group, records = job
    if group == "corpus_chats":
        w = Words("train", records[0]["messages"][0]["content"][:40])
        records = [with_thought(w, r) if w.chance(0.15) else r for r in records]
    return group, ENCODER(records, group)


def with_thought(w, record):
    """The corpus has no reasoning; a line of it keeps plain chat in order when thinking is on."""
    messages = [dict(m) for m in record["messages"]]
    if len(messages) > 1 and messages[-1]["role"] == "assistant" and messages[-2]["role"] == "user":
        messages[-1]["reasoning_content"] = chat.small_thought(w, messages[-2]["content"])
    return {**record, "messages": messages}


def jobs_of(folder, scale, skip):
    for group, names in (("text", corpus.TEXT), ("corpus_chats", corpus.CHATS), ("corpus_tasks", corpus.TASKS)):
        rng, batch = random.Random(3), []
        for r in (r for n in names for r in corpus.read(folder, n)):
            if rng.random() < min(1, scale * 4) and r["source"] not in skip:
                batch.append(r)
            if len(batch) == BATCH:
                yield encode, (group, batch)
                batch = []
        yield encode, (group, batch)
    for group, count in COUNTS.items():
        size = 100 if group == "recall" else BATCH
        for i in range(max(1, int(count * scale / size))):
            yield generate, (group, i, size)


def run(job):
    return job[0](job[1])


def main(args):
    global ENCODER, FILLER, SEED
    begun = time.time()
    ENCODER, FILLER, SEED = Encoder(args.tokenizer), Filler(args.corpus, 5), args.seed
    open_words(FILLER.texts[::2])
    groups = {}
    with multiprocessing.get_context("fork").Pool(args.workers) as pool:
        for group, docs in pool.imap_unordered(run, jobs_of(args.corpus, args.scale, args.skip)):
            groups.setdefault(group, []).extend(docs)
    args.out.mkdir(parents=True, exist_ok=True)
    for group, docs in groups.items():
        docs = [d for d in docs if len(d[0]) > 8]
        starts = np.cumsum([0] + [len(d[0]) for d in docs])
        tokens, kinds = (np.concatenate([d[i] for d in docs]) for i in (0, 1))
        for name, array in (("tokens", tokens), ("kinds", kinds), ("starts", starts)):
            np.save(args.out / f"{group}.{name}.npy", array)
        answer = np.isin(kinds, (ANSWER, RECALL_ANSWER)).mean()
        print(f"{group:14s} {len(docs):8d} documents {len(tokens) / 1e6:8.2f}M tokens, longest {max(len(d[0]) for d in docs)}, answers {answer:.0%}", flush=True)
    (args.out / "done").touch()
    print(f"prepared in {time.time() - begun:.0f} s")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", required=True)
    p.add_argument("--tokenizer", default="../../models/merlin")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--workers", type=int, default=os.cpu_count())
    p.add_argument("--seed", default="", help="for other synthetic documents")
    p.add_argument("--skip", nargs="*", default=[], help="sources of the corpus to leave out")
    p.add_argument("--scale", type=float, default=1.0, help="share of the synthetic documents to make")
    main(p.parse_args())
