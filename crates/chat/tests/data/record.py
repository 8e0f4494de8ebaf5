"""Records what transformers makes of templates/*.jinja (goldens.json) and trains the two small tokenizers.

Run with transformers and tokenizers installed: python record.py
"""

import datetime
import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TOOLS = [{"type": "function", "function": {
    "name": "find_bird", "description": "Finds a bird <by> name & place, \"exactly\".",
    "parameters": {"type": "object", "properties": {
        "items": {"type": "string"}, "limit": {"type": "integer", "default": 3}, "min": {"type": "number", "default": 0.5}},
        "required": ["items"]}}}]
USER = {"role": "user", "content": "Where do lanners nest?"}
CASES = {
    "user": {"messages": [USER, {"role": "assistant", "content": "  On cliffs. "}], "add_generation_prompt": False},
    "turns": {
        "messages": [
            {"role": "system", "content": "Be brief – naïve café 😀."}, USER,
            {"role": "assistant", "content": "On cliffs.", "reasoning_content": "\nthey are falcons\n"},
            {"role": "user", "content": "And <hunt>?"}],
        "add_generation_prompt": True},
    "tools": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "reasoning_content": "look it up", "tool_calls": [
                {"type": "function", "function": {"name": "find_bird", "arguments": {"items": "lanner", "min": 1e-05}}}]},
            {"role": "tool", "content": "{\"found\": true}"}],
        "tools": TOOLS, "add_generation_prompt": True, "enable_thinking": False},
    "continue": {
        "messages": [USER, {"role": "assistant", "content": "On  "}],
        "add_generation_prompt": False, "continue_final_message": True},
}
CONTINUED = ("assistant.jinja", "whitespace.jinja")


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 7, 15, 4, 5)


def render(template, case):
    case = dict(case)
    messages, tools = case.pop("messages"), case.pop("tools", None)
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template, **SPECIAL, **case)
        return {"expected": rendered[0]}
    except Exception as error:  # what the template raises is part of the golden
        return {"error": f"{type(error).__name__}: {error}"}


def record_templates():
    chat_template_utils.datetime = FixedClock
    goldens = [
        {"template": path.name, "case": name, **render(path.read_text(), case)}
        for path in sorted((HERE / "templates").glob("*.jinja")) for name, case in CASES.items()
        if name != "continue" or path.name in CONTINUED]
    content = {"special_tokens": SPECIAL, "cases": CASES, "goldens": goldens}
    (HERE / "goldens.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


TEXT = """The lanner is a falcon of open country. It nests on cliffs, hunts in pairs and flies low over the plain.
A token is a piece of a word; the word is a piece of a thought. Numbers such as 12, 345 and 6789 are cut too.
def fly(bird):\n    return [wing for wing in bird.wings if wing.open]\n
Über den Wäldern kreist ein Falke. Le faucon plane au-dessus de la vallée déjà ombragée. Сокол летит над степью.
隼は空を飛ぶ。猎隼在山上。 😀 🦅 naïve café — “quoted” …"""
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def save(name, tokenizer, plain=(), config=SPECIAL):
    """Saves a tokenizer; `plain` tokens, added to get their ids, go back to being plain vocabulary."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] not in plain]
    for token in content["added_tokens"]:
        token["special"] = token["content"] not in ("<think>", "</think>")
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def train_byte_level():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    added = ["<s>", "</s>", "[user]", "<think>", "</think>"]
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=512, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=added, show_progress=False))
    save("byte_level", tokenizer)


def train_sentencepiece():
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    ascii_text = "".join(c for c in TEXT if c < "\x7f")
    tokenizer.train_from_iterator(ascii_text.split("\n"), trainers.BpeTrainer(
        vocab_size=460, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False))
    save("sentencepiece", tokenizer, plain=BYTES, config={"bos_token": {"content": "<s>"}, "eos_token": "</s>"})


if __name__ == "__main__":
    record_templates()
    train_byte_level()
    train_sentencepiece()
