"""transformers as the reference: float32, eager attention."""

import json
import tempfile
from pathlib import Path

import torch
import transformers

from manifest import architecture, reference_config


class Transformers:
    """`begin` gives a cache, `logits` feeds it tokens."""

    def __init__(self, folder, golden):
        options = dict(dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        if "quantization_config" in golden["config"]:
            options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
        with tempfile.TemporaryDirectory() as readable:
            for file in Path(folder).iterdir():
                (Path(readable) / file.name).symlink_to(file)
            config = Path(readable) / "config.json"
            config.unlink()
            config.write_text(json.dumps(reference_config(golden)))
            self.model, info = architecture(golden).from_pretrained(readable, **options)
        bad = {what: sorted(names) for what, names in info.items() if names and what != "unexpected_keys"}
        if bad:
            raise RuntimeError(f"checkpoint and model disagree: {bad}")
        self.model.eval()

    def begin(self):
        return transformers.DynamicCache(config=self.model.config)

    @torch.no_grad()
    def logits(self, ids, cache=None):
        """[tokens, vocab]"""
        out = self.model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=cache is not None)
        return out.logits[0].float().numpy()


def rounded(row):
    return [round(float(v), 5) for v in row]
