"""Measured shapes: real models' config.json and tensor names, from the engine's tests, without weights."""

import json
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
