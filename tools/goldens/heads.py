#!/usr/bin/env python3
"""Records the predictions of the multi-token prediction (MTP) heads of recorded checkpoints.

    heads.py ../../crates/engine/tests/goldens            all that have one
    heads.py ../../crates/engine/tests/goldens qwen3_5-a  some

transformers has their parts: the layer is a decoder layer of the family, put together here as the papers and its own
`MtpLayer` do. Each folder gets head.json:

    prompt_ids       the prompt of the second case of golden.json
    positions        of hidden states h_i; the head gets h_i and the token i + 1, and predicts the token i + 2
    logits           [position][vocab]
    drafts           greedy, the first after the last position; each further one by the head's own hidden state, after
                     its norm, in place of the model's, and the draft before
    draft_margins    gap between the two likeliest tokens at each
    last_logits      [vocab], those of the last draft
"""

import copy
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from torch import nn

import families_mlx  # noqa: F401: adds to GOLDENS
import tensors
from families import GOLDENS
from reference import Transformers, rounded

DRAFTS = 4
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
# DeepSeek's and GLM's names, below the layer after the last, by Qwen's
NAMES = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "shared_head.norm": "norm"}


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    for name in sys.argv[2:] or [name for name, golden in GOLDENS.items() if golden.get("mtp")]:
        print(name, record(GOLDENS[name], out / name), flush=True)


@torch.no_grad()
def record(golden, folder):
    recorded = json.loads((folder / "golden.json").read_text())
    with tempfile.TemporaryDirectory() as checkpoint:
        (Path(checkpoint) / "config.json").write_text((folder / "config.json").read_text())
        tensors.write(recorded, checkpoint)
        model = Transformers(checkpoint, golden).model
    head = Head(model, recorded)
    ids = recorded["cases"][1]["prompt_ids"]
    result = predictions(head, ids)
    (folder / "head.json").write_text("{\n" + ",\n".join(
        f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in result.items()) + "\n}\n")
    return f"drafts {result['drafts']}, margin {min(result['draft_margins']):.0e}"


def predictions(head, ids):
    tokens = torch.tensor([ids])
    hidden = head.base[0](input_ids=tokens).last_hidden_state[:, :-1]
    tokens = tokens[:, 1:]
    out = head(tokens, hidden)
    logits = head.logits(out)
    positions = sorted({0, len(ids) // 2, len(ids) - 2})
    result = dict(prompt_ids=ids, positions=positions, logits=[rounded(logits[p]) for p in positions],
                  drafts=[], draft_margins=[])
    for _ in range(DRAFTS):
        last = logits[-1]
        first, second = last.topk(2).values.tolist()
        result["drafts"].append(int(last.argmax()))
        result["draft_margins"].append(round(first - second, 5))
        tokens = torch.cat([tokens, last.argmax()[None, None]], 1)
        hidden = torch.cat([hidden, out[:, -1:]], 1)
        out = head(tokens, hidden)
        logits = head.logits(out)
    result["last_logits"] = rounded(last)
    return result


class Head(nn.Module):
    """The head of a checkpoint, on the embedding and the output head of its model."""

    def __init__(self, model, recorded):
        super().__init__()
        text = model.config.get_text_config()
        base = getattr(model.model, "language_model", model.model)
        # In lists, so that they are not registered as parts of the head.
        self.model, self.base = [model], [base]
        size, norm = text.hidden_size, lambda: type(base.norm)(text.hidden_size, eps=text.rms_norm_eps)
        index = text.num_hidden_layers
        qwen = any(name.startswith("mtp.") for name in recorded["tensors"])
        config = one_layer(text) if qwen else text
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([type(base.layers[-1])(config, 0 if qwen else index - 1)])
        weights = stored(recorded, "mtp." if qwen else f"model.layers.{index}.")
        self.float().eval().load_state_dict(weights)

    def forward(self, tokens, hidden):
        embedded = self.base[0].embed_tokens(tokens)
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        n = x.shape[1]
        positions = torch.arange(n)[None]
        mask = torch.full((n, n), torch.finfo(x.dtype).min).triu(1)[None, None]
        out = self.layers[0](x, position_embeddings=self.base[0].rotary_emb(x, positions), attention_mask=mask,
                             position_ids=positions)
        return self.norm(out[0] if isinstance(out, tuple) else out)

    def logits(self, out):
        return self.model[0].lm_head(out)[0].float()


def one_layer(text):
    """The config of a model whose only layer is one of full attention, with experts if any layer has them."""
    config = copy.deepcopy(text)
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    config.mlp_only_layers, config.decoder_sparse_step = [], 1
    return config


def stored(recorded, prefix):
    """The head's tensors as the modules here call them, experts as one tensor."""
    weights, experts = {}, {}
    for name, spec in recorded["tensors"].items():
        if not name.startswith(prefix) or "embed_tokens" in name or "shared_head.head" in name:
            continue
        tensor, name = tensors.values(name, recorded["seed"], spec).float(), name.removeprefix(prefix)
        if prefix != "mtp.":
            owner, leaf = name.rsplit(".", 1)
            name = f"{NAMES[owner]}.{leaf}" if owner in NAMES else f"layers.0.{name}"
        if match := EXPERT.fullmatch(name):
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
        else:
            weights[name] = tensor
    for path, parts in experts.items():
        count = 1 + max(i for i, _ in parts)
        weights[f"{path}.gate_up_proj"] = torch.stack(
            [torch.cat([parts[i, "gate"], parts[i, "up"]]) for i in range(count)])
        weights[f"{path}.down_proj"] = torch.stack([parts[i, "down"] for i in range(count)])
    return weights


if __name__ == "__main__":
    main()
