#!/usr/bin/env python3
"""Exact match of a running server on the corpus's held-out records: JSON answers and tool calls.

    lanner serve                                   # in another terminal
    python3 held_out.py --val CORPUS/val.jsonl.zst [--url http://127.0.0.1:11436/v1]

Takes every record whose last assistant turn is a JSON object, or a tool call, gives the turns before it and compares the
answer as JSON: every key, value and type. Greedy, thinking off. Needs the program zstd, and nothing but Python.
"""

import argparse
import collections
import json
import re
import subprocess
import urllib.request


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--val", required=True)
    parser.add_argument("--url", default="http://127.0.0.1:11436/v1")
    args = parser.parse_args()
    text = subprocess.run(["zstd", "-dc", "--long=27", args.val], capture_output=True, check=True).stdout.decode()
    right, total = collections.Counter(), collections.Counter()
    for record in map(json.loads, text.splitlines()):
        case = as_case(record)
        if case is None:
            continue
        kind, messages, expected = case
        key = (kind, record["source"])
        total[key] += 1
        right[key] += answer_of(kind, ask(args.url, messages, record.get("tools"))) == expected
    for kind in sorted({kind for kind, _ in total}):
        keys = [key for key in total if key[0] == kind]
        n, good = sum(total[k] for k in keys), sum(right[k] for k in keys)
        print(f"{kind}: {100 * good / n:.1f} % of {n}")
        for key in keys:
            print(f"  {key[1]}: {right[key]} of {total[key]}")


def as_case(record):
    messages = json.loads(json.dumps(record.get("messages") or []).replace("{{NAME}}", "Merlin"))
    if "GPTeacher" in record["source"] or not messages:
        return None
    last = next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "assistant"
                 and (messages[i].get("tool_calls") or as_object(messages[i].get("content")) is not None)), None)
    if last is None:
        return None
    calls = messages[last].get("tool_calls")
    if calls:
        return "tool call", messages[:last], [call_of(call.get("function", call)) for call in calls]
    return "JSON", messages[:last], as_object(messages[last]["content"])


def as_object(text):
    try:
        value = json.loads(text or "")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def call_of(call):
    arguments = call.get("arguments")
    return call.get("name"), as_object(arguments) if isinstance(arguments, str) else arguments


def answer_of(kind, text):
    if kind == "JSON":
        return as_object(text)
    calls = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", text, re.S)
    return [call_of(as_object(call) or {}) for call in calls]


def ask(url, messages, tools):
    body = dict(messages=messages, temperature=0, max_tokens=250, chat_template_kwargs={"enable_thinking": False})
    if tools:
        body["tools"] = tools
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""


if __name__ == "__main__":
    main()
