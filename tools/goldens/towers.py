#!/usr/bin/env python3
"""Records tiny checkpoints with vision towers: features, positions, logits and greedy tokens, by transformers in float32.

    towers.py ../../crates/engine/tests/towers            all
    towers.py ../../crates/engine/tests/towers qwen3_5    some

Each folder gets config.json and golden.json: `seed`, `tensors` and `reference` as in record.py, and

    images[]     rows and columns of the tensor, in patches or in pixels; features: [token][hidden]. Values of the tensor
                 of image i are those of the tensor `pixels.i` in tensors.py, uniform in [-1, 1). Where an image has
                 several tensors, `views` lists rows and columns of each, and `pixels.i` holds one after the other
    cases[]      as in record.py, and images: the index of each image and the runs of its positions in the prompt;
                 positions: [axis][token], and delta, where the model has them
"""

import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers

import tensors
from families import GEMMA4_DENSE, GOLDENS, TORCH_NAMES, merged, with_dtype
from manifest import hub_manifest
from reference import Transformers, rounded

STEPS = 24
KEPT_STEPS = (1, 20)
MAX_JSON = 150_000

TOWERS = {}


def tower(name, base, grids, dtype="BF16", seed=1, mtp=None, saved=False, **changes):
    """A golden of the config `base` with these changes; `grids` are the images' rows and columns of patches, or lists
    of those of the tensors of each. `saved`: experts as transformers saves them, not as they are published."""
    config = with_dtype(merged(base, changes), TORCH_NAMES[dtype])
    TOWERS[name] = dict(config=config, seed=seed, dtype=dtype, shards=1, grids=grids, mtp=mtp, saved=saved)


def published(name):
    return GOLDENS[name]["config"]


QWEN = dict(published("qwen3_5-a")["vision_config"], depth=3)
GRIDS = [(4, 6), (6, 4), (2, 2), (10, 8)]

tower("qwen3_5", published("qwen3_5-a"), GRIDS, mtp="fused", vision_config=QWEN)
tower("qwen3_5-odd", published("qwen3_5-odd"), GRIDS, dtype="F32", seed=41, vision_config=dict(
    QWEN, hidden_size=48, num_heads=3, intermediate_size=40, num_position_embeddings=25, out_hidden_size=72,
    patch_size=6))
tower("qwen3_5_moe", published("qwen3_5_moe-a"), GRIDS, seed=81, vision_config=dict(QWEN, model_type="qwen3_5_moe"))

# Features of earlier blocks go to the first layers of the text model.
QWEN3_VL = dict(
    architectures=["Qwen3VLForConditionalGeneration"], image_token_id=252, model_type="qwen3_vl",
    text_config=merged(published("qwen3-a"), dict(
        architectures=..., transformers_version=..., model_type="qwen3_vl_text",
        rope_scaling=dict(mrope_interleaved=True, mrope_section=[6, 5, 5], rope_type="default"))),
    tie_word_embeddings=True, video_token_id=253, vision_end_token_id=254, vision_start_token_id=251,
    vision_config=dict(QWEN, model_type="qwen3_vl", depth=4, deepstack_visual_indexes=[0, 2]))
tower("qwen3_vl", QWEN3_VL, GRIDS, seed=121)

QWEN3_VL_MOE = merged(QWEN3_VL, dict(
    architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe", tie_word_embeddings=False,
    text_config=dict(
        model_type="qwen3_vl_moe_text", decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=48,
        norm_topk_prob=True, num_experts=6, num_experts_per_tok=2, tie_word_embeddings=..., max_window_layers=...,
        use_sliding_window=..., sliding_window=...),
    vision_config=dict(QWEN3_VL["vision_config"], model_type="qwen3_vl_moe")))
tower("qwen3_vl_moe", QWEN3_VL_MOE, GRIDS, seed=161)
tower("qwen3_vl_moe-odd", QWEN3_VL_MOE, GRIDS, dtype="F32", seed=521, saved=True,
      text_config=dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=20, mlp_only_layers=[1],
                       moe_intermediate_size=24, norm_topk_prob=..., num_experts=5, num_experts_per_tok=3,
                       rope_scaling=dict(mrope_interleaved=True, mrope_section=[4, 3, 3], rope_type="default")),
      vision_config=dict(QWEN3_VL_MOE["vision_config"], out_hidden_size=72))

MISTRAL3 = published("mistral3")
tower("mistral3", MISTRAL3, [(28, 56), (56, 28), (28, 84), (84, 112)], seed=201,
      vision_config=dict(MISTRAL3["vision_config"], num_hidden_layers=3, image_size=140))

GEMMA3 = published("gemma3-a")
tower("gemma3", GEMMA3, [(16, 16)] * 4, seed=241, vision_config=dict(GEMMA3["vision_config"], num_hidden_layers=3))

GEMMA4 = published("gemma4-a")
tower("gemma4", GEMMA4, [(4, 6), (6, 4), (2, 2), (10, 8)], seed=281,
      vision_config=dict(GEMMA4["vision_config"], num_hidden_layers=3))
tower("gemma4-vision", GEMMA4, [(4, 6), (6, 4), (2, 2), (10, 8)], seed=321,
      text_config=dict(use_bidirectional_attention="vision"),
      vision_config=dict(GEMMA4["vision_config"], num_hidden_layers=3, standardize=True))
tower("gemma4-clipped", GEMMA4, [(4, 6), (6, 4), (2, 2), (10, 8)], seed=361,
      vision_config=dict(GEMMA4["vision_config"], num_hidden_layers=2, use_clipped_linears=True))

# Without an encoder: tokens are patches.
GEMMA4_UNIFIED = merged(GEMMA4, dict(
    architectures=["Gemma4UnifiedForConditionalGeneration"], model_type="gemma4_unified", boa_token_id=...,
    eoa_token_id=..., text_config=dict(
        GEMMA4_DENSE, model_type="gemma4_unified_text", hidden_size_per_layer_input=..., num_kv_shared_layers=0,
        use_double_wide_mlp=False, use_bidirectional_attention="vision", vocab_size_per_layer_input=...,
        enable_moe_block=..., expert_intermediate_size=..., num_experts=..., top_k_experts=...),
    vision_config=dict(mm_embed_dim=64, mm_posemb_size=16, model_type="gemma4_unified_vision", output_proj_dims=64,
                       patch_size=4, pooling_kernel_size=2, rms_norm_eps=1e-6)))
tower("gemma4_unified", GEMMA4_UNIFIED, [(2, 3), (3, 2), (1, 1), (5, 4)], seed=401)

# The last image is two tiles and a thumbnail.
LFM2_VL_GRIDS = [[(4, 6)], [(8, 2)], [(2, 2)], [(4, 4), (4, 4), (2, 6)]]
LFM2_VL = dict(
    architectures=["Lfm2VlForConditionalGeneration"], do_image_splitting=True, downsample_factor=2, dtype="bfloat16",
    image_token_id=252, model_type="lfm2_vl", projector_bias=True, projector_hidden_act="gelu",
    projector_hidden_size=40, projector_use_layernorm=True, text_config=merged(
        published("lfm2-a"), dict(architectures=..., transformers_version=..., num_hidden_layers=3)),
    tie_word_embeddings=True, transformers_version="4.57.0.dev0", vision_config=dict(
        attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", hidden_size=32, intermediate_size=48,
        layer_norm_eps=1e-6, model_type="siglip2_vision_model", num_attention_heads=2, num_channels=3,
        num_hidden_layers=3, num_patches=25, patch_size=4, vision_use_head=False))
tower("lfm2_vl", LFM2_VL, LFM2_VL_GRIDS, seed=441)
tower("lfm2_vl-odd", dict(LFM2_VL, text_config=published("lfm2_moe-a")), LFM2_VL_GRIDS, dtype="F32", seed=481,
      projector_bias=False, projector_use_layernorm=False, tie_word_embeddings=False,
      text_config=dict(architectures=..., transformers_version=..., hidden_size=72, num_attention_heads=6,
                       num_key_value_heads=3, tie_embedding=False),
      vision_config=dict(LFM2_VL["vision_config"], hidden_size=48, num_attention_heads=3, num_patches=9,
                         num_hidden_layers=2, patch_size=6, vision_use_head=True))

# Images of each prompt, by index, with text of this many tokens before each and after the last.
PROMPTS = [([0], [3, 5]), ([3, 2, 1], [4, 7, 1, 9]), ([2, 2], [2, 30, 40])]


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in sys.argv[2:] or TOWERS:
        print(name, record(TOWERS[name], Path(sys.argv[1]) / name), flush=True)


@torch.no_grad()
def record(golden, folder):
    recorded = {"seed": golden["seed"], "reference": "", "tensors": hub_manifest(golden)}
    architecture = golden["config"]["architectures"][0]
    recorded["reference"] = f"transformers {architecture} float32 eager"
    config = json.dumps(golden["config"], indent=1) + "\n"
    while not (results := run_all(golden, recorded, config)):
        recorded["seed"] += 1
        assert recorded["seed"] <= golden["seed"] + 39, "no seed will do"
    recorded["images"], recorded["cases"] = results
    text = json.dumps(recorded, separators=(",", ":")).replace('},"', '},\n"').replace('],"', '],\n"') + "\n"
    assert len(text) < MAX_JSON, len(text)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "golden.json").write_text(text)
    margins = [min(case["greedy_margin"]) for case in recorded["cases"]]
    return f"seed {recorded['seed']}, {len(text) // 1000} kB, margin {min(margins)}"


def run_all(golden, recorded, config):
    """The images and the cases, or None if this seed is unsuitable."""
    with tempfile.TemporaryDirectory() as checkpoint:
        (Path(checkpoint) / "config.json").write_text(config)
        tensors.write(recorded, checkpoint)
        model = Transformers(checkpoint, golden).model
    pictures = [kind(golden["config"])(model, golden, recorded["seed"], index) for index in range(len(golden["grids"]))]
    cases = []
    for prompt in PROMPTS:
        cases.append(run(model, golden["config"], pictures, prompt, recorded["seed"]))
        if not sound(cases[-1]):
            return None
    return [picture.described() for picture in pictures], cases


class Picture:
    """Random numbers in place of an image."""

    def __init__(self, model, golden, seed, index):
        grid = golden["grids"][index]
        self.views = grid if isinstance(grid, list) else [grid]
        self.rows, self.columns = self.views[0]
        config = golden["config"]
        spec = dict(dtype="F32", shape=self.shape(config["vision_config"]), mean=0.0, spread=1.0)
        self.pixels = tensors.values(f"pixels.{index}", seed, spec)
        features = model.model.get_image_features(**self.inputs([self])).pooler_output
        self.features = torch.cat(list(features)).reshape(-1, config["text_config"]["hidden_size"])
        self.ids = self.expansion(self.features.shape[0], config)

    def described(self):
        views = dict(views=self.views) if len(self.views) > 1 else {}
        return dict(rows=self.rows, columns=self.columns, **views, features=[rounded(row) for row in self.features])


class QwenPicture(Picture):
    """Patches, and positions with axes."""

    def shape(self, vision):
        width = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
        return [self.rows * self.columns, width]

    def expansion(self, tokens, config):
        return [config["vision_start_token_id"]] + [IMAGE] * tokens + [config["vision_end_token_id"]]

    @staticmethod
    def inputs(pictures):
        grids = torch.tensor([[1, picture.rows, picture.columns] for picture in pictures])
        return dict(pixel_values=torch.cat([picture.pixels for picture in pictures]), image_grid_thw=grids)

    @staticmethod
    def placed(model, ids, images):
        kinds = torch.tensor([[int(token == IMAGE) for token in ids]])
        model.model.rope_deltas = None
        positions, delta = model.model.get_rope_index(
            torch.tensor([ids]), image_grid_thw=images["image_grid_thw"], mm_token_type_ids=kinds)
        return dict(positions=positions[:, 0].tolist(), delta=int(delta.reshape(-1)[0])), dict(mm_token_type_ids=kinds)


class PlanarPicture(Picture):
    """Planes of pixels."""

    def shape(self, vision):
        return [3, self.rows, self.columns]

    @staticmethod
    def placed(model, ids, images):
        return {}, {}


class Gemma3Picture(PlanarPicture):
    """One size."""

    def expansion(self, tokens, config):
        return [config["boi_token_index"]] + [IMAGE] * tokens + [config["eoi_token_index"]]

    @staticmethod
    def inputs(pictures):
        return dict(pixel_values=torch.stack([picture.pixels for picture in pictures]))

    @staticmethod
    def placed(model, ids, images):
        return {}, dict(token_type_ids=torch.tensor([[int(token == IMAGE) for token in ids]]))


class Gemma4Picture(Picture):
    """Patches row by row, padded to the same number."""

    def shape(self, vision):
        return [self.rows * self.columns, 3 * vision["patch_size"] ** 2]

    def expansion(self, tokens, config):
        return [config["boi_token_id"]] + [IMAGE] * tokens + [config["eoi_token_id"]]

    @staticmethod
    def inputs(pictures):
        most = max(picture.rows * picture.columns for picture in pictures)
        pixels = torch.zeros(len(pictures), most, pictures[0].pixels.shape[1])
        places = torch.full((len(pictures), most, 2), -1)
        for own, place, picture in zip(pixels, places, pictures):
            count = picture.rows * picture.columns
            own[:count] = picture.pixels
            place[:count] = torch.tensor([[x, y] for y in range(picture.rows) for x in range(picture.columns)])
        return dict(pixel_values=pixels, image_position_ids=places)

    @staticmethod
    def placed(model, ids, images):
        return {}, dict(mm_token_type_ids=torch.tensor([[int(token == IMAGE) for token in ids]]))


class Gemma4UnifiedPicture(Gemma4Picture):
    """The pixels of one token together."""

    def shape(self, vision):
        return [self.rows * self.columns, 3 * (vision["patch_size"] * vision["pooling_kernel_size"]) ** 2]

    @staticmethod
    def placed(model, ids, images):
        """With the masks of `generate`, which are Google's: without them, `forward` has full layers attend both ways too
        (transformers, issue 46711)."""
        described, more = Gemma4Picture.placed(model, ids, images)
        masks = model.create_masks_for_generate(
            config=model.config, inputs_embeds=torch.empty(1, len(ids), 0), attention_mask=None, past_key_values=None,
            position_ids=torch.arange(len(ids))[None], **more)
        return described, dict(attention_mask=masks, **more)


class Lfm2VlPicture(Picture):
    """One view, or tiles and a thumbnail: patches row by row, padded to the same number."""

    def shape(self, vision):
        return [sum(rows * columns for rows, columns in self.views), 3 * vision["patch_size"] ** 2]

    def expansion(self, tokens, config):
        factor = config["downsample_factor"] ** 2
        pads = [[IMAGE] * (rows * columns // factor) for rows, columns in self.views]
        tiles = sum(([TILE] + tile for tile in pads[:-1]), [])
        return [START] + tiles + [THUMBNAIL] * bool(tiles) + pads[-1] + [END]

    @staticmethod
    def inputs(pictures):
        views = [view for picture in pictures for view in picture.views]
        counts = [rows * columns for rows, columns in views]
        pixels = torch.cat([picture.pixels for picture in pictures]).split(counts)
        mask = torch.tensor([[int(patch < count) for patch in range(max(counts))] for count in counts])
        return dict(pixel_values=torch.nn.utils.rnn.pad_sequence(pixels, batch_first=True), pixel_attention_mask=mask,
                    spatial_shapes=torch.tensor(views))

    @staticmethod
    def placed(model, ids, images):
        return {}, {}


class PixtralPicture(PlanarPicture):
    """A break after each row."""

    def expansion(self, tokens, config):
        columns = self.columns // config["vision_config"]["patch_size"] // config["spatial_merge_size"]
        rows = [[IMAGE] * columns + [BREAK] for _ in range(tokens // columns)]
        return sum(rows, [])[:-1] + [END]

    @staticmethod
    def inputs(pictures):
        sizes = [(picture.rows, picture.columns) for picture in pictures]
        rows, columns = (max(size[side] for size in sizes) for side in (0, 1))
        whole = torch.zeros(len(pictures), 3, rows, columns)
        for padded, picture in zip(whole, pictures):
            padded[:, :picture.rows, :picture.columns] = picture.pixels
        return dict(pixel_values=whole, image_sizes=torch.tensor(sizes))


IMAGE, BREAK, END = 252, 253, 254
START, TILE, THUMBNAIL = 250, 251, 253
SPECIAL_IDS = range(250, 256)
KINDS = {"mistral3": PixtralPicture, "gemma3": Gemma3Picture, "gemma4": Gemma4Picture,
         "gemma4_unified": Gemma4UnifiedPicture, "lfm2_vl": Lfm2VlPicture}


def kind(config):
    return KINDS.get(config["model_type"], QwenPicture)


def run(model, config, pictures, prompt, seed):
    indices, lengths = prompt
    random = np.random.default_rng([seed, *lengths])
    ids, placed = [], []
    for at, length in enumerate(lengths):
        ids += random.integers(3, 250, length).tolist()
        if at < len(indices):
            own = pictures[indices[at]].ids
            placed.append([indices[at], runs(own, len(ids))])
            ids += own
    images = kind(config).inputs([pictures[i] for i in indices])
    described, _ = kind(config).placed(model, ids, images)
    first, last = placed[0][1][0][0], placed[0][1][-1][1]
    chosen = sorted({0, first + 1, last, len(ids) - 1})
    case = dict(prompt_ids=ids, images=placed, **described, logit_positions=chosen, logits=[], greedy_ids=[],
                greedy_margin=[], decode_logits={})
    for step in range(STEPS + 1):
        whole = ids + case["greedy_ids"]
        _, more = kind(config).placed(model, whole, images)
        out = model(input_ids=torch.tensor([whole]), use_cache=False, **images, **more).logits[0].float().numpy()
        if step == 0:
            case["logits"] = [rounded(out[p]) for p in chosen]
        if step in KEPT_STEPS:
            case["decode_logits"][str(step)] = rounded(out[-1])
        if step < STEPS:
            second, best = np.sort(out[-1])[-2:]
            case["greedy_ids"].append(int(out[-1].argmax()))
            if case["greedy_ids"][-1] in SPECIAL_IDS:
                return None
            case["greedy_margin"].append(round(float(best - second), 5))
    return case


def runs(ids, start):
    """First positions and ends of the runs of image tokens in `ids`, which begin at `start`."""
    found = []
    for at, token in enumerate(ids, start):
        if token == IMAGE and found and found[-1][1] == at:
            found[-1][1] += 1
        elif token == IMAGE:
            found.append([at, at + 1])
    return found


def sound(case):
    """No rounding changes the tokens, and they are worth comparing."""
    return case is not None and min(case["greedy_margin"]) >= 2e-3 and len(set(case["greedy_ids"])) >= 3


if __name__ == "__main__":
    main()
