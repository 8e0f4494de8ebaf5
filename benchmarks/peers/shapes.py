"""Measured shapes: real models' config.json and tensor names, from the engine's tests, without weights."""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "crates/engine/tests/configs"

# Lanner's name of a shape, and its configuration.
NAMES = {
    "qwen3.5-0.8b": "Qwen3.5-0.8B",
    "qwen3.5-4b": "Qwen3.5-4B",
    "qwen3.5-9b": "Qwen3.5-9B",
    "llama-8b": "Meta-Llama-3.1-8B",
}


@dataclass
class Shape:
    name: str
    config: dict                  # config.json, whole
    tensors: dict                 # name in the hub's checkpoint -> dimensions, outermost first
    tower: dict                   # the same of its vision tower

    @property
    def text(self):
        """The part of config.json that describes the language model."""
        return self.config.get("text_config", self.config)

    @property
    def tied(self):
        return "lm_head.weight" not in self.tensors


def load(name):
    described = json.loads((CONFIGS / f"{NAMES[name]}.json").read_text())
    tensors, tower = {}, {}
    for pattern, (_, dimensions) in described["tensors"].items():
        if not pattern.startswith("mtp."):  # llama.cpp and mlx-lm do not run it
            part = tower if pattern.startswith("model.visual.") else tensors
            part.update((tensor, dimensions) for tensor in expand(pattern))
    return Shape(name, described["config"], tensors, tower)


def random_words(name, count, random_bits, set_bits):
    """Numbers of two bytes in pieces, the same for the same name; of the lower and the upper byte, the bits that are
    random and those that are set."""
    rng, step = random.Random(name), 1 << 20
    tables = [bytes(fixed | byte & free for byte in range(256)) for free, fixed in zip(random_bits, set_bits)]
    for start in range(0, count, step):
        out = bytearray(rng.randbytes(2 * min(step, count - start)))
        out[0::2], out[1::2] = out[0::2].translate(tables[0]), out[1::2].translate(tables[1])
        yield out


def expand(pattern):
    """Expands a pattern such as `layers.{0-2,5}.{k,v}_proj`."""
    match = re.search(r"\{([^}]*)\}", pattern)
    if not match:
        return [pattern]
    names = []
    for part in match[1].split(","):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        choices = range(int(span[1]), int(span[2]) + 1) if span else [part]
        for choice in choices:
            names += expand(f"{pattern[:match.start()]}{choice}{pattern[match.end():]}")
    return names
