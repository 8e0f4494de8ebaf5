"""Measures each engine. An engine's `measure` runs it once, pinned, and returns a flat dict: `prefill N`
(tokens per second over a prompt of N) and `decode after N` (tokens per second, generating after a prompt of N). It also knows its `version` and the bytes of `weights` a decoded token reads.
"""

import json
import statistics
import sys
from pathlib import Path

import install
import machine
import shapes
import write_gguf
import write_mlx

HERE = Path(__file__).resolve().parent
MERLIN = shapes.ROOT / "models/merlin"


class Lanner:
    def __init__(self, shape, settings, int8):
        self.name = "Lanner int8" if int8 else "Lanner"
        self.settings = settings
        model = ["--model", MERLIN] if shape is None else ["--shape", shape.name]
        self.command = [settings.lanner, "bench", *model, "--prompt", joined(settings.prompts), "--generate", settings.generate,
                        "--batch", 1, "--repeats", settings.repeats, "--threads", settings.threads, "--json",
                        *(["--precision", "int8"] if int8 else [])]

    def measure(self):
        out = json.loads(machine.run(self.command, self.settings.cpus))
        self.version = f"{out['lanner']}, {out['machine']['vectors']}, {out['model']['quantization']}"
        first = out["runs"][0]
        known = first["weight_gb_s"] is not None
        self.weights = round(first["weight_gb_s"] * 1e9 / first["decode_tok_s"]["median"]) if known else None
        figures = {}
        for run in out["runs"]:
            figures[f"prefill {run['prompt']}"] = run["prefill_tok_s"]["median"]
            figures[f"decode after {run['prompt']}"] = run["decode_tok_s"]["median"]
        return figures


class Llama:
    """llama.cpp with one of the two files its quantize makes for Q4_0: the output matrix in Q6_K, or (pure) in Q4_0."""

    def __init__(self, shape, settings, pure):
        self.name = "llama.cpp Q4_0 pure" if pure else "llama.cpp Q4_0"
        self.settings = settings
        folder = settings.work / "llama"
        if not (folder / "llama-bench").exists():
            sys.exit(f"there is no {folder}/llama-bench; run `prepare` first")
        self.built = json.loads((folder / "build.json").read_text())
        missing = set(self.built["instructions"]) - set(install.supported(avx512=True))
        if missing:
            sys.exit(f"{folder}/llama-bench needs {' '.join(sorted(missing))}, which this processor lacks")
        path = settings.work / "models" / shape.name / ("q4_0-pure.gguf" if pure else "q4_0.gguf")
        self.weights = made(path, lambda path: write_gguf.write(shape, path, pure))
        self.command = [folder / "llama-bench", "-m", path, "-t", settings.threads, "-r", settings.repeats, "-o", "json"]

    def measure(self):
        prompts = self.settings.prompts
        figures = {f"prefill {test['n_prompt']}": statistics.median(test["samples_ts"])
                   for test in self.bench("-p", joined(prompts), "-n", 0)}
        for test in self.bench("-p", 0, "-n", self.settings.generate, "-d", joined(ends(prompts))):
            figures[f"decode after {test['n_depth']}"] = statistics.median(test["samples_ts"])
        return figures

    def bench(self, *arguments):
        tests = json.loads(machine.run([*self.command, *arguments], self.settings.cpus))
        self.version = f"{tests[0]['build_commit']} of {self.built['package']}, {self.built['flags']}, " \
                       f"{' '.join(self.built['instructions'])}"
        return tests


class MlxLm:
    """mlx-lm is slow on a CPU, so few tokens have to suffice; its rates hardly depend on their number."""
    name = "mlx-lm"

    def __init__(self, shape, settings):
        self.settings = settings
        python = settings.mlx_python or settings.work / "mlx-lm/bin/python"
        if not Path(python).exists():
            sys.exit(f"there is no {python}; run `prepare` first, or leave mlx-lm out with --engines")
        if shape is None:
            folder, self.weights = MERLIN, (MERLIN / "model.safetensors").stat().st_size
        else:
            folder = settings.work / "models" / shape.name / "mlx"
            self.weights = made(folder, lambda path: write_mlx.write(shape, path))
        self.command = [python, HERE / "mlx_lm_tokens.py", folder, *settings.mlx_tokens]

    def measure(self):
        out = json.loads(machine.run(self.command, self.settings.cpus))
        self.version = f"{out['mlx_lm']} on MLX {out['mlx']}, affine 4-bit, group 64"
        return {"prefill": out["prefill_tok_s"], "decode": out["decode_tok_s"]}


def create(wanted, shape, settings):
    """The engines in their order within a round; `shape` is None for merlin, which llama.cpp cannot run."""
    engines = []
    if "lanner" in wanted:
        engines.append(Lanner(shape, settings, int8=False))
    if "lanner-int8" in wanted:
        engines.append(Lanner(shape, settings, int8=True))
    if "llama.cpp" in wanted and shape is not None:
        engines += [Llama(shape, settings, pure=False), Llama(shape, settings, pure=True)]
    if "mlx-lm" in wanted:
        engines.append(MlxLm(shape, settings))
    return engines


def made(path, write):
    """The bytes of weights that a token reads, stored beside the complete model; `write` makes it and returns them."""
    note = path.with_name(path.name + ".weights")
    if not note.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        install.say(f"writing {path}")
        note.write_text(str(write(path)))
    return int(note.read_text())


def ends(prompts):
    """The first and the last prompt, after which llama.cpp's decoding is timed: each costs a prefill."""
    return sorted({prompts[0], prompts[-1]})


def joined(numbers):
    return ",".join(map(str, numbers))
