"""The official anthropic package for Python: messages, streams, thinking, tools and errors."""

import json
import os
import traceback

try:
    import anthropic
except ImportError:
    print(json.dumps({"skip": "pip install anthropic"}))
    raise SystemExit

client = anthropic.Anthropic(base_url=os.environ["LANNER_URL"], api_key="none", max_retries=0)
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather for a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASK = [{"role": "user", "content": "What is the weather in Oslo?"}]
HELLO = [{"role": "user", "content": "Say hello."}]
THINK = {"type": "enabled", "budget_tokens": 1024}


def arguments(**changes):
    # The package has no parameter of this name for all of its models.
    extra = {"extra_body": {"temperature": 0}}
    return {"model": "default", "max_tokens": 200, "messages": ASK, **extra, **changes}


def ask(**changes):
    return client.messages.create(**arguments(**changes))


def the_call(message):
    assert message.stop_reason == "tool_use", message
    (call,) = [block for block in message.content if block.type == "tool_use"]
    return call


def message():
    answer = ask(messages=HELLO, system="Be brief.")
    assert answer.type == "message" and answer.role == "assistant", answer
    assert answer.content[0].text and answer.stop_reason in ("end_turn", "max_tokens"), answer
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0, answer.usage


def stream():
    with client.messages.stream(**arguments(messages=HELLO)) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text and final.content[0].text == text, (text, final)
    assert final.usage.output_tokens > 0, final.usage


def thinking():
    answer = ask(messages=[{"role": "user", "content": "What is 17 + 25?"}], max_tokens=2000, thinking=THINK)
    first = answer.content[0]
    assert first.type == "thinking" and first.thinking and first.signature, answer
    turns = [
        {"role": "user", "content": "What is 17 + 25?"},
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": "And 1 + 1?"},
    ]
    assert ask(messages=turns, max_tokens=2000, thinking=THINK).content, "no answer after thinking"


def thinking_stream():
    question = [{"role": "user", "content": "What is 17 + 25?"}]
    with client.messages.stream(**arguments(messages=question, max_tokens=2000, thinking=THINK)) as events:
        kinds = {event.type for event in events}
        final = events.get_final_message()
    assert {"thinking", "signature", "message_stop"} <= kinds, kinds
    assert final.content[0].signature, final


def tools_auto():
    assert the_call(ask(tools=[WEATHER])).input["city"] == "Oslo"


def tools_any():
    choice = {"type": "any", "disable_parallel_tool_use": True}
    assert isinstance(the_call(ask(tools=[WEATHER], tool_choice=choice)).input["city"], str)


def tools_named_and_none():
    the_call(ask(tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"}))
    assert ask(tools=[WEATHER], tool_choice={"type": "none"}).stop_reason != "tool_use"


def tools_stream():
    with client.messages.stream(**arguments(tools=[WEATHER])) as events:
        parts = [event.partial_json for event in events if event.type == "input_json"]
        call = the_call(events.get_final_message())
    assert json.loads("".join(parts)) == call.input and len(parts) > 1, (parts, call)


def tools_round_trip():
    first = ask(tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": the_call(first).id, "content": '{"temperature": 7}'}
    turns = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    answer = ask(messages=turns, tools=[WEATHER])
    assert answer.content and answer.content[0].type == "text", answer


def stop_sequences():
    answer = ask(messages=HELLO, stop_sequences=["e"])
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == "e", answer


def cache():
    text = "You know birds of prey, by their cries and by their feathers. " * 20
    system = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
    first = ask(messages=HELLO, system=system, max_tokens=1).usage
    second = ask(messages=ASK, system=system, max_tokens=1).usage
    assert first.cache_creation_input_tokens > 200, first
    assert second.cache_read_input_tokens >= first.cache_creation_input_tokens, (first, second)


def count_tokens():
    counted = client.messages.count_tokens(model="default", messages=ASK, tools=[WEATHER]).input_tokens
    usage = ask(tools=[WEATHER], max_tokens=1).usage
    total = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert counted == total, (counted, usage)


def errors():
    image = {"type": "image", "source": {"type": "url", "url": "http://localhost/owl.png"}}
    search = {"type": "web_search_20250305", "name": "web_search"}
    for changes in [
        {"messages": [{"role": "user", "content": [image]}]},
        {"tools": [search]},
        {"messages": []},
    ]:
        try:
            ask(**changes)
        except anthropic.BadRequestError as error:
            assert error.body["error"]["type"] == "invalid_request_error", error.body
            assert error.request_id, error
        else:
            raise AssertionError(f"not refused: {changes}")
    try:
        ask(model="claude-nothing")
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    else:
        raise AssertionError("another model was not refused")


CHECKS = [
    message,
    stream,
    thinking,
    thinking_stream,
    tools_auto,
    tools_any,
    tools_named_and_none,
    tools_stream,
    tools_round_trip,
    stop_sequences,
    cache,
    count_tokens,
    errors,
]

for check in CHECKS:
    try:
        check()
        print(json.dumps({"check": check.__name__, "ok": True}), flush=True)
    except Exception:
        detail = traceback.format_exc().strip().splitlines()
        row = {"check": check.__name__, "ok": False, "detail": " | ".join(detail[-2:])}
        print(json.dumps(row), flush=True)
