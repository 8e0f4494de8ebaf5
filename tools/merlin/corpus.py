"""Reads the corpus, renders chats with the shipped template, and turns both into token ids."""

import io
import json
import re
from pathlib import Path

import jinja2.sandbox
import zstandard

from tasks.arithmetic import reserved

HERE = Path(__file__).parent
TEXT = ["stories", "wiki", "extra_books"]
CHATS = ["dialogue", "instruct", "reasoning"]
TASKS = ["json_extract", "toolcalls", "synthetic"]
SUM = re.compile(r"(\d\d+)\s*([-+*x]|plus|minus|times|added to|multiplied by)\s*(\d\d+)")
OPERATORS = {"*": "x", "plus": "+", "minus": "-", "times": "x", "added to": "+", "multiplied by": "x"}
# These say who the assistant is; merlin has answers of its own for that.
OTHER_IDENTITY = ("synthetic:identity", "gunthercox/chatterbot-corpus")


def wanted(line, record):
    source = record["source"]
    if "GPTeacher" in source or source in OTHER_IDENTITY:
        return False
    if source.startswith(("synthetic:arithmetic", "reasoning-gym:chain_sum", "synthetic:tool call")):
        return not any(reserved(int(a), OPERATORS.get(op, op), int(b)) for a, op, b in SUM.findall(line))
    return True


def read(folder, name):
    """The records of one corpus file that training may use."""
    with open(Path(folder) / f"{name}.jsonl.zst", "rb") as f:
        stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(f)
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            line = line.replace("{{NAME}}", "Merlin")
            record = json.loads(line)
            if wanted(line, record):
                yield record


def template():
    def to_json(x, ensure_ascii=False, indent=None):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = to_json
    return env.from_string((HERE / "chat_template.jinja").read_text()).render


def text_of(record, render):
    """The training text of a record; plain text ends with the end-of-text token."""
    if "messages" in record:
        return render(messages=record["messages"], tools=record.get("tools"))
    return record["text"] + "<|endoftext|>"
