"""The official ollama package for Python."""

import json

import ollama
from support import (
    ENDLESS_TOKENS,
    KEY,
    PICTURE,
    TOO_LONG,
    URL,
    check_freed,
    check_picture,
    check_raises,
    report,
)

client = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})
MODEL = client.list().models[0].model
SHORT = {"temperature": 0, "num_predict": 60}


def get_weather(city: str) -> str:
    """Get the weather for a city

    Args:
        city: The city
    """
    return json.dumps({"city": city, "temperature": 7})


def ask(text="Say hello.", **arguments):
    messages = [{"role": "user", "content": text}]
    return client.chat(MODEL, **{"messages": messages, "options": SHORT, "think": False, **arguments})


def chat():
    answer = ask()
    assert answer.message.content and answer.done and answer.done_reason in ("stop", "length"), answer
    assert answer.eval_count > 0 and answer.prompt_eval_count > 0 and answer.total_duration > 0, answer


def chat_stream():
    parts = list(ask(stream=True))
    assert "".join(part.message.content for part in parts) == ask().message.content
    assert parts[-1].done and not any(part.done for part in parts[:-1])


def thinking():
    answer = ask("What is 2 + 2?", think=True, options={"temperature": 0, "num_predict": 300})
    assert answer.message.thinking, answer


def generate():
    answer = client.generate(MODEL, "Say hello.", options=SHORT, think=False)
    assert answer.response and answer.done, answer
    parts = list(client.generate(MODEL, "Say hello.", options=SHORT, think=False, stream=True))
    assert "".join(part.response for part in parts) == answer.response
    assert client.generate(MODEL, "The owl", raw=True, options=SHORT).response


def load():
    assert client.generate(MODEL, keep_alive="5m").done_reason == "load"


def picture():
    messages = [{"role": "user", "content": "What is in the picture?", "images": [PICTURE]}]
    tokens = lambda answer: answer.prompt_eval_count
    check_picture(lambda: ask(messages=messages), ollama.ResponseError, tokens)
    generate = lambda: client.generate(MODEL, "What is it?", images=[PICTURE], options=SHORT, think=False)
    check_picture(generate, ollama.ResponseError, tokens)


def format_json():
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    assert json.loads(ask("Answer in JSON.", format=schema).message.content)["n"] in (1, 2)


def tools():
    arguments = {"tools": [get_weather], "options": {"temperature": 0, "num_predict": 200}}
    answer = ask("What is the weather in Oslo?", **arguments)
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_weather" and call.function.arguments["city"] == "Oslo", call
    messages = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        answer.message,
        {"role": "tool", "tool_name": "get_weather", "content": get_weather(**call.function.arguments)},
    ]
    final = client.chat(MODEL, messages=messages, think=False, **arguments)
    assert final.message.content and not final.message.tool_calls, final


def tools_stream():
    arguments = {"tools": [get_weather], "options": {"temperature": 0, "num_predict": 200}}
    parts = ask("What is the weather in Oslo?", stream=True, **arguments)
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert [call.function.arguments for call in calls] == [{"city": "Oslo"}], calls


def embeddings():
    many = client.embed(MODEL, ["The owl", "A hare"])
    one = client.embeddings(MODEL, "A hare")
    assert len(many.embeddings) == 2 and list(many.embeddings[1]) == list(one.embedding)
    assert len(client.embed(MODEL, "The owl", dimensions=5).embeddings[0]) == 5


def models():
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"], shown
    (running,) = client.ps().models
    assert running.model == MODEL and running.size_vram > 0 and running.expires_at, running


def refusals():
    for status, call in (
        (404, lambda: client.chat("llama9", messages=[{"role": "user", "content": "x"}])),
        (400, lambda: client.delete(MODEL)),
        (400, lambda: client.copy(MODEL, "other")),
        (400, lambda: ask(options={"mirostat": 2})),
    ):
        error = check_raises(call, ollama.ResponseError)
        assert error.status_code == status and error.error, (status, error)


def context_overflow():
    words = "maximum context length is 8192 tokens"
    error = check_raises(lambda: ask(TOO_LONG, options={"temperature": 0}), ollama.ResponseError, words)
    assert error.status_code == 400, error


def wrong_key():
    stranger = ollama.Client(host=URL, headers={"Authorization": "Bearer wrong"})
    call = lambda: stranger.chat(MODEL, messages=[{"role": "user", "content": "x"}])
    assert check_raises(call, ollama.ResponseError).status_code == 401


def cancel():
    # Ollama's API has no field that keeps an answer from ending; a minimum in a schema does.
    schema = {"type": "array", "items": {"enum": [1]}, "minItems": ENDLESS_TOKENS}
    options = {"temperature": 0, "num_predict": ENDLESS_TOKENS}
    parts = ask("Count.", stream=True, format=schema, options=options)
    next(parts)
    check_freed(parts.close)


report(
    chat=[chat, picture, thinking, load, models],
    stream=[chat_stream],
    tools_auto=[tools, tools_stream],
    tools_required="Ollama's API has no tool_choice",
    tools_named="Ollama's API has no tool_choice",
    structured_output=[format_json],
    completions=[generate],
    responses="the package speaks Ollama's API only",
    messages="the package speaks Ollama's API only",
    embeddings=[embeddings],
    errors=[refusals, context_overflow, wrong_key],
    cancel=[cancel],
)
