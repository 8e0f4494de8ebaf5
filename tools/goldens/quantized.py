"""Quantised checkpoints as mlx-lm's converter writes them. Codes are random bits, and mlx-lm is the reference."""

import contextlib
import json
import math
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, quantize_model

import tensors
from manifest import EXACT, hub_manifest, short, value_range

# Standard deviation of the numbers that random codes stand for. e4m3 has codes for NaN: without the highest bit of the exponent no
# code is one.
E2M1_DEVIATION, E4M3_DEVIATION, E4M3_MASK = 2.93, 0.62, 0xBFBFBFBF


def mlx_golden(golden):
    """`golden` with the converter's config, and the manifest of the converter's output."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        hub = {"seed": 0, "tensors": hub_manifest(golden)}
        tensors.write(hub, folder)
        (Path(folder) / "config.json").write_text(json.dumps(golden["config"]))
        model, config = load_model(Path(folder))
        model, config = quantize_model(model, config, golden["group"], golden["bits"], golden["mode"],
                                       quant_predicate=predicate(model, golden))
    config.pop("vision_config", None)
    for path in golden.get("unlisted", ()):
        config["quantization"].pop(path)
    for path in golden.get("listed_false", ()):
        config["quantization"][path] = False
    config["quantization_config"] = config["quantization"]
    golden = dict(golden, config=config)
    return golden, manifest(model, golden)


def predicate(model, golden):
    """The model's own choice, unless the golden makes one for the path."""
    own, chosen = getattr(model, "quant_predicate", None), golden.get("overrides", {})
    return lambda path, module: chosen[path] if path in chosen else own(path, module) if own else True


def manifest(model, golden):
    modules, specs = dict(model.named_modules()), {}
    for name, array in sorted(tree_flatten(model.parameters())):
        path, _, leaf = name.rpartition(".")
        module = modules[path]
        if leaf in ("weight", "scales", "biases") and hasattr(module, "bits"):
            specs[name] = quantized_spec(name, array, module, golden)
        else:
            centre = round(float(array.mean()) * 2) / 2  # what `norm_centre` chose, plus 1 where mlx-lm adds it
            mean, spread = value_range(name, array.shape, centre, golden["config"]["model_type"])
            dtype = "F32" if name.endswith(EXACT) else golden["dtype"]
            specs[name] = dict(dtype=dtype, shape=list(array.shape), mean=mean, spread=short(spread))
    return specs


def quantized_spec(name, array, module, golden):
    """Codes are uniform; scales and biases put the weight where `value_range` wants it."""
    path, _, leaf = name.rpartition(".")
    shape, mode, levels = list(array.shape), module.mode, 2 ** module.bits - 1
    if leaf == "weight":
        return dict(dtype="U32", shape=shape, bits=True) | (dict(mask=E4M3_MASK) if mode == "mxfp8" else {})
    dense_shape = shape[:-1] + [shape[-1] * module.group_size]
    _, spread = value_range(f"{path}.weight", dense_shape, 0.0, golden["config"]["model_type"])
    deviation = spread / math.sqrt(3)
    if mode == "affine":
        scale = deviation / math.sqrt((levels + 1) ** 2 / 12)
        mean = scale if leaf == "scales" else -scale * levels / 2
        return dict(dtype=golden["dtype"], shape=shape, mean=short(mean), spread=short(abs(mean) * 0.1))
    scale = deviation / (E4M3_DEVIATION if mode == "mxfp8" else E2M1_DEVIATION)
    if mode == "nvfp4":  # e4m3: eight steps to the octave
        low = (7 + math.floor(math.log2(scale))) * 8
        return dict(dtype="U8", shape=shape, low=low, high=low + 7)
    low = 127 + math.floor(math.log2(scale))
    return dict(dtype="U8", shape=shape, low=low, high=low + 1)


class MlxLm:
    """mlx-lm on the CPU in float32. Weights are widened before it sees them: it would add 1 to norms in bfloat16."""

    def __init__(self, folder, golden):
        load = mx.load
        mx.load = lambda *args, **rest: {
            name: array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array
            for name, array in load(*args, **rest).items()}
        try:
            self.model, _ = load_model(Path(folder))
        finally:
            mx.load = load

    def begin(self):
        return make_prompt_cache(self.model)

    def logits(self, ids, cache=None):
        """[tokens, vocab]"""
        return np.array(self.model(mx.array([ids]), cache=cache or self.begin())[0].astype(mx.float32))
