"""Batches of conversations about fresh pictures, made by forked workers in memory that they share with the trainer.

A batch has fixed sizes: `rows` conversations of `length` tokens and room for a fixed number of patches, so that
everything on the GPU is compiled once. Unused room is padding.
"""

import mmap
import multiprocessing
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from tokenizers import Tokenizer

from vision import scenes
from vision.pixels import MERGE, PATCH, patches, places, resize
from vision.questions import exchange

START, END, IMAGE = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"
SYSTEMS = ["You are a helpful assistant.", "You are merlin, a small assistant.", "Answer briefly.", "You are a helpful assistant who answers questions about pictures."]
LONGEST = 100  # tokens of the largest picture
PAD = 8178


@dataclass
class Sizes:
    rows: int = 384
    length: int = 192
    tokens_each: int = 88  # picture tokens of a row, on average at most

    @property
    def tokens(self):
        return self.rows * self.tokens_each

    @property
    def pictures(self):
        return self.rows + self.rows // 2 + 2

    def arrays(self):
        """Name -> (shape, type) of everything in a batch."""
        patches, rows = self.tokens * MERGE**2, self.rows
        return {
            "patches": ((patches, 3 * PATCH * PATCH), np.uint8), "thing": ((patches,), np.uint8), "hue": ((patches,), np.uint8),
            "place": ((patches, 4), np.uint8),  # row, column, rows and columns of its picture
            "cu": ((self.pictures + 1,), np.int32),  # where the pictures' patches start
            "spot": ((self.tokens,), np.int32),  # where each picture token lies among the rows' tokens
            "ids": ((rows, self.length), np.int32), "answer": ((rows, self.length), np.uint8),  # 1 where the next token is to be learnt
            "position": ((3, rows, self.length), np.int16),
        }


class Text:
    """Token ids of the pieces of conversations, as the chat template renders them."""

    def __init__(self, folder):
        tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vocabulary = tok.get_vocab()
        self.encode = lru_cache(1 << 16)(lambda text: tok.encode(text, add_special_tokens=False).ids)
        self.decode = lambda ids: tok.decode(ids, skip_special_tokens=False)
        self.image, self.end = self.vocabulary[IMAGE], self.encode("<|im_end|>\n")

    def answer(self, text, spelt):
        """An answer's ids; its spelt part letter by letter, so that words are read and not recognised."""
        if spelt is None:
            return self.encode(text)
        letters = [self.vocabulary[c] for c in spelt]
        if text == spelt:
            return letters
        before, after = text.rsplit(f'"{spelt}"', 1)
        return [*self.encode(f'{before}"'), *letters, *self.encode(f'"{after}')]

    def system(self, text):
        return self.encode(f"<|im_start|>system\n{text}<|im_end|>\n")

    def user(self, question, picture, first):
        """A user's turn; the picture (its number of tokens) before the question, or behind it."""
        head, pads = self.encode("<|im_start|>user\n"), []
        if picture:
            pads = [*self.encode(START), *[self.image] * picture, *self.encode(END)]
        asked = self.encode(question)
        return [*head, *(pads + asked if first else asked + pads), *self.end]

    def assistant(self, last):
        return self.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n" if last else "<|im_start|>assistant\n")


def conversation(text, pictures, length, rng, split, words):
    """(ids, which of them are answers) of a chat about [(scene, (h, w))], with as many questions as fit into `length`; `words` is the
    split of wordings.template."""
    turns = []
    system = text.system(SYSTEMS[int(rng.integers(len(SYSTEMS)))]) if rng.random() < 0.1 else []
    budget = length - len(system) - 8
    for scene, (h, w) in pictures:
        order = rng.permutation(len(scene.exchanges))
        first = True
        for i in order[: 1 if split == "eval" or len(pictures) > 1 else 5]:
            question, answer, spelt = exchange(*scene.exchanges[i], words, rng)
            user = text.user(question, h * w if first else 0, rng.random() < 0.8)
            said = text.answer(answer, spelt)
            cost = len(user) + len(said) + 10
            if cost > budget:
                if first:
                    return conversation(text, pictures[:1], length, rng, split, words) if len(pictures) > 1 else None
                continue
            budget -= cost
            turns.append((user, said))
            first = False
    ids, learnt = list(system), [0] * len(system)
    for k, (user, said) in enumerate(turns):
        head = text.assistant(k == len(turns) - 1)
        ids += user + head + said + text.end
        learnt += [0] * (len(user) + len(head)) + [1] * (len(said) + 1) + [0] * (len(text.end) - 1)
    return ids, learnt


def positions(ids, grids, image):
    """[3, n] rotary positions: text counts on all axes; a picture spans rows and columns from one start."""
    out = np.zeros((3, len(ids)), np.int16)
    at, start, grids = 0, 0, iter(grids)
    while at < len(ids):
        if ids[at] != image:
            out[:, at] = start
            at, start = at + 1, start + 1
            continue
        h, w = next(grids)
        span = slice(at, at + h * w)
        out[0, span], out[1, span], out[2, span] = start, start + np.repeat(np.arange(h), w), start + np.tile(np.arange(w), h)
        at, start = at + h * w, start + max(h, w)
    return out


class Maker:
    """Fills the arrays of batches."""

    def __init__(self, sizes, folder, seed):
        self.sizes, self.text = sizes, Text(folder)
        scenes.open_words(self.text.vocabulary)
        self.rng = np.random.default_rng(seed)
        self.styles = scenes.Styles(self.rng)
        self.grain = self.rng.standard_normal(4_000_000).astype(np.float32)

    def scene(self, split, kind, most):
        return scenes.make(self.rng, split, kind, most, self.styles, self.grain)

    def kind(self):
        at = self.rng.random() * sum(scenes.MIX.values())
        for name, share in scenes.MIX.items():
            at -= share
            if at < 0:
                break
        return name

    def row(self, split, kind, wanted, words, room):
        """Pictures and conversation of one row, of at most `room` picture tokens."""
        while True:
            two = split == "train" and room >= 136 and self.rng.random() < 0.08
            pictures = [self.scene(split, kind or self.kind(), 68 if two else min(LONGEST, room)) for _ in range(1 + two)]
            if wanted:
                pictures[0][0].exchanges = [e for e in pictures[0][0].exchanges if e[0] in wanted]
            if not pictures[0][0].exchanges:
                continue
            made = conversation(self.text, pictures, self.sizes.length, self.rng, split, words)
            if made:
                ids, learnt = made
                return pictures[: max(1, sum(a != self.text.image and b == self.text.image for a, b in zip(ids, ids[1:])))], ids, learnt

    def fill(self, out, split="train", kind=None, wanted=None, words="train"):
        """Fills the arrays `out` with a batch; evaluation asks one question of a kind in `wanted` per row, worded as in the split `words`."""
        for name, value in out.items():
            value[...] = PAD if name == "ids" else 0
        spot = np.full(self.sizes.tokens, self.sizes.rows * self.sizes.length, np.int32)
        used, cu = 0, [0]
        for i in range(self.sizes.rows):
            room = self.sizes.tokens - used - 64 * (self.sizes.rows - 1 - i)
            if len(cu) - 1 - i >= self.sizes.rows // 8:
                room = min(room, LONGEST)
            pictures, ids, learnt = self.row(split, kind, wanted, words, room)
            n = len(ids)
            out["ids"][i, :n] = ids
            out["answer"][i, : n - 1] = learnt[1:]
            out["position"][:, i, :n] = positions(ids, [g for _, g in pictures], self.text.image)
            pads = np.flatnonzero(np.array(ids) == self.text.image)
            spot[used : used + len(pads)] = i * self.sizes.length + pads
            for scene, (h, w) in pictures:
                self.picture(out, scene, h, w, used * MERGE**2)
                used += h * w
                cu.append(used * MERGE**2)
        out["spot"][:] = spot
        self.padding(out["cu"], cu)

    def picture(self, out, scene, h, w, at):
        rows, columns = h * MERGE, w * MERGE
        span = slice(at, at + rows * columns)
        out["patches"][span] = patches(resize(scene.canvas, rows * PATCH, columns * PATCH))
        y, x = places(rows, columns)
        things, hues = scenes.labels(scene, rows, columns)
        out["thing"][span], out["hue"][span] = things[y, x], hues[y, x]
        out["place"][span] = np.stack([y, x, np.full_like(y, rows), np.full_like(y, columns)], 1)

    def padding(self, starts, cu):
        """Cuts the unused patches into pieces no longer than a picture; further pieces are empty."""
        total, longest = self.sizes.tokens * MERGE**2, LONGEST * MERGE**2
        while len(cu) < len(starts):
            cu.append(min(total, cu[-1] + longest))
        assert cu[-1] == total, "the padding does not fit"
        starts[:] = cu


class Source:
    """Worker processes that fill slots of shared memory: one training batch each, the batches of `orders` ((kind, wanted, wording) of
    evaluation), then training batches without end."""

    def __init__(self, sizes, folder, workers, slots, seed, orders=()):
        self.shapes, self.sizes = sizes.arrays(), sizes
        size = sum(-(-int(np.prod(shape)) * np.dtype(kind).itemsize // 64) * 64 for shape, kind in self.shapes.values())
        # Anonymous memory needs no room in /dev/shm; forked workers share it.
        self.maps = [mmap.mmap(-1, size) for _ in range(slots)]
        self.slots = [self.views(m) for m in self.maps]
        fork = multiprocessing.get_context("fork")
        self.free, self.full = fork.SimpleQueue(), fork.SimpleQueue()
        for i in range(slots):
            self.free.put(i)
        todo = list(enumerate(orders))
        self.workers = [fork.Process(target=self.work, args=(folder, seed + i, todo[i::workers]), daemon=True) for i in range(workers)]
        for w in self.workers:
            w.start()

    def views(self, memory):
        out, at = {}, 0
        for name, (shape, kind) in self.shapes.items():
            out[name] = np.frombuffer(memory, kind, int(np.prod(shape)), at).reshape(shape)
            at += -(-out[name].nbytes // 64) * 64
        return out

    def work(self, folder, seed, orders):
        torch.set_num_threads(1)
        maker = Maker(self.sizes, folder, seed)
        # The trainer compiles with this one, and the held-out sets are made meanwhile.
        self.put(maker, None)
        for i, order in orders:
            # A seed of its own: the set does not depend on the number of workers.
            self.put(Maker(self.sizes, folder, 1_000_000 + i), i, "eval", *order)
        while True:
            self.put(maker, None)

    def put(self, maker, order, *what):
        slot = self.free.get()
        maker.fill(self.slots[slot], *what)
        self.full.put((slot, order))

    def take(self):
        """(slot, number of the order or None); its arrays are `slots[slot]`, and `free.put(slot)` gives it back."""
        while not self.full.empty() or any(w.is_alive() for w in self.workers):
            if self.full._poll(5):
                return self.full.get()
        raise RuntimeError("all workers that make pictures have ended")

    def close(self):
        for w in self.workers:
            w.terminate()
