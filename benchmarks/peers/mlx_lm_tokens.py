"""Times mlx-lm on one checkpoint folder through its own generate_step, and prints one JSON object.

Run by a Python that has mlx-lm: mlx_lm_tokens.py FOLDER PROMPT_TOKENS GENERATED_TOKENS
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model


def main():
    folder, prompt, generate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    mx.set_default_device(mx.cpu)
    model, config = load_model(folder)
    mx.random.seed(0)
    vocabulary = config.get("text_config", config)["vocab_size"]
    tokens = mx.random.randint(0, vocabulary, (prompt,))
    mx.eval(tokens)
    times = [time.perf_counter()]
    for _ in generate_step(tokens, model, max_tokens=generate):
        times.append(time.perf_counter())
    assert len(times) == generate + 1, "mlx-lm ended early"
    print(json.dumps({"mlx_lm": version("mlx-lm"), "mlx": version("mlx"), "prefill_tok_s": prompt / (times[1] - times[0]),
                      "decode_tok_s": (generate - 1) / (times[-1] - times[1])}))


main()
