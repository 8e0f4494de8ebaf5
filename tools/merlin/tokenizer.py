"""Trains merlin's tokenizer: byte-level BPE, 8192 tokens, digits one by one, Qwen's special tokens."""

import argparse
import itertools
import json
import random
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus
from tasks import arithmetic, chat, extract, recall, tools
from words import Words

VOCAB = 8192
# Hidden from decoded text, and visible in it, as in Qwen.
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def sample(folder, share):
    """Pieces of training text without the special tokens."""
    render = corpus.template()
    rng = random.Random(1)
    records = itertools.chain.from_iterable(corpus.read(folder, n) for n in corpus.TEXT + corpus.CHATS + corpus.TASKS)
    records = itertools.chain((r for r in records if rng.random() < share), synthetic(int(40000 * share)))
    marks = re.compile("|".join(map(re.escape, CONTROL + MARKUP)))
    for r in records:
        yield from (p for p in marks.split(corpus.text_of(r, render)) if p)


def synthetic(n):
    w = Words("train", "tokenizer")
    talk = chat.quick
    makers = [arithmetic.make, extract.make, extract.make, lambda w: tools.make(w, talk=talk), chat.make, lambda w: recall.pairs(w, 800)]
    return (w.pick(*makers)(w) for _ in range(n))


def train(folder, share):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(CONTROL) - len(MARKUP), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(sample(folder, share), trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP])
    assert tok.get_vocab_size() == VOCAB
    return tok


def save(tok, out):
    out.mkdir(parents=True, exist_ok=True)
    tok.save(str(out / "tokenizer.json"))
    added = {str(tok.token_to_id(t)): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": t in CONTROL} for t in CONTROL + MARKUP}
    template = (corpus.HERE / "chat_template.jinja").read_text()
    (out / "chat_template.jinja").write_text(template)
    config = {
        "add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": CONTROL, "bos_token": None, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 8192, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None, "chat_template": template,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--corpus", required=True, help="folder with the .jsonl.zst files")
    p.add_argument("--out", type=Path, default=Path("../../models/merlin"))
    p.add_argument("--share", type=float, default=0.4, help="share of the corpus to learn from")
    args = p.parse_args()
    save(train(args.corpus, args.share), args.out)
