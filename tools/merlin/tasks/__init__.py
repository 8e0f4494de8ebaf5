"""Synthetic tasks. Each module has `make(words, ...)`, which returns one chat record:
{"messages": [...], "tools": [...] or absent, "answer": what evaluation expects}."""


def record(user, answer, thought=None, system=None, tools=None, expect=None):
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    reply = {"role": "assistant", "content": answer}
    if thought:
        reply["reasoning_content"] = thought
    messages.append(reply)
    out = {"messages": messages, "answer": answer if expect is None else expect}
    if tools:
        out["tools"] = tools
    return out


SYSTEMS = [
    "You are a helpful assistant.", "You are Merlin, a helpful assistant.", "You are a friendly assistant.",
    "Be brief and clear.", "You are a careful assistant.", "Answer in simple English.", "You help people.",
    "You are a helpful AI assistant. Answer the user's question.", "Keep answers short.", "You are Merlin.",
]


def maybe_system(w, p=0.25):
    return w.pick(*SYSTEMS) if w.chance(p) else None
