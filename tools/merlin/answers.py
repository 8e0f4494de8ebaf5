#!/usr/bin/env python3
"""Collects merlin's own answers to the corpus's questions and continuations of its texts from a running server.

    lanner serve --max-batch 32                    # in another terminal
    python3 answers.py --corpus CORPUS --out data [--url http://127.0.0.1:11436/v1] [--minutes 30]

A drafter is to guess what merlin says, so that is what train_block.py teaches it. Writes the group `answers` as prepare.py
does: answers.{tokens,kinds,starts}.npy, again every few minutes. Two of three are greedy, the others drawn.
"""

import argparse
import json
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import corpus
from prepare import ANSWER, PROMPT

# Longer prompts are skipped; of texts, merlin gets the first FIRST tokens.
LONGEST, FIRST, MOST_NEW = 384, (16, 96), 192
# Relative number of records taken from each file.
SHARES = {"dialogue": 3, "instruct": 4, "reasoning": 1, "stories": 2, "wiki": 1, "extra_books": 1}


def main(args):
    tok = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    render, rng, begun = corpus.template(), random.Random(args.seed), time.time()
    docs, saved = [], begun
    with ThreadPoolExecutor(args.workers) as pool:
        prompts = prompts_of(args.corpus, {"val": 1} if args.held_out else SHARES, tok, render, rng)
        while time.time() - begun < 60 * args.minutes:
            batch = list(islice(prompts, 16 * args.workers))
            if not batch:
                break
            docs += [d for d in pool.map(lambda p: answer(args.url, tok, *p), batch) if len(d[1]) > 8]
            if time.time() - saved > 120:
                save(args.out, docs)
                saved = time.time()
    save(args.out, docs)


def prompts_of(folder, shares, tok, render, rng):
    """(token ids, temperature) of questions and of beginnings of texts, in turn by `shares`, until all files have ended."""
    files = {name: corpus.read(folder, name) for name in shares}
    while files:
        name = rng.choices(list(files), [shares[n] for n in files])[0]
        # Not all of it has the same sources throughout.
        record = next(islice(files[name], rng.randrange(8), None), None)
        if record is None:
            del files[name]
            continue
        ids = prompt(record, tok, render, rng)
        if ids and len(ids) <= LONGEST:
            yield ids, rng.choice((0.0, 0.0, 0.8))


def prompt(record, tok, render, rng):
    if "messages" not in record:
        return tok.encode(record["text"]).ids[: rng.randrange(*FIRST)]
    turns = [i for i, m in enumerate(record["messages"]) if m["role"] == "assistant" and i > 0]
    if not turns:
        return None
    messages = record["messages"][: rng.choice(turns)]
    text = render(messages=messages, tools=record.get("tools"), add_generation_prompt=True, enable_thinking=False)
    return tok.encode(text).ids


def answer(url, tok, ids, temperature):
    """(prompt, answer) as token ids."""
    asked = {"model": "merlin", "prompt": ids, "max_tokens": MOST_NEW, "temperature": temperature, "seed": len(ids)}
    request = urllib.request.Request(url + "/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        choice = json.load(response)["choices"][0]
    end = [tok.token_to_id("<|im_end|>")] if choice["finish_reason"] == "stop" else []
    return ids, tok.encode(choice["text"]).ids + end


def save(out, docs):
    out.mkdir(parents=True, exist_ok=True)
    arrays = {
        "tokens": np.array([t for p, a in docs for t in p + a], np.uint16),
        "kinds": np.concatenate([np.repeat(np.array([PROMPT, ANSWER], np.uint8), (len(p), len(a))) for p, a in docs]),
        "starts": np.cumsum([0] + [len(p) + len(a) for p, a in docs]),
    }
    for name, array in arrays.items():
        np.save(out / f"new.{name}.npy", array)
        (out / f"new.{name}.npy").replace(out / f"answers.{name}.npy")
    print(f"{len(docs)} answers, {arrays['starts'][-1]} tokens, {int((arrays['kinds'] == ANSWER).sum())} of them said", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", required=True)
    p.add_argument("--tokenizer", type=Path, default=Path("../../models/merlin"))
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--url", default="http://127.0.0.1:11436/v1")
    p.add_argument("--held-out", action="store_true", help="of the corpus's validation file, which nothing is trained on")
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--workers", type=int, default=32)
    p.add_argument("--seed", type=int, default=1)
    main(p.parse_args())
