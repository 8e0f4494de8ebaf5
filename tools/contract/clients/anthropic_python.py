"""The official anthropic package for Python."""

import json
import uuid

import anthropic
from support import (
    ENDLESS,
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

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
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
    # New in every run: nothing of it may be cached before.
    text = f"You are {uuid.uuid4()}. " + "You know birds of prey, by their cries and by their feathers. " * 20
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


def structured_output():
    properties = {"bird": {"type": "string", "maxLength": 20}, "legs": {"enum": [2, 4]}}
    schema = {"type": "object", "properties": properties, "required": ["bird", "legs"]}
    schema["additionalProperties"] = False
    output = {"format": {"type": "json_schema", "schema": schema}}
    answer = ask(extra_body={"output_config": output, "temperature": 2, "seed": 1})
    bird = json.loads(answer.content[0].text)
    assert isinstance(bird["bird"], str) and bird["legs"] in (2, 4) and len(bird) == 2, bird


def bad_request():
    image = {"type": "image", "source": {"type": "url", "url": "http://localhost/owl.png"}}
    search = {"type": "web_search_20250305", "name": "web_search"}
    for changes in [
        {"messages": [{"role": "user", "content": [image]}]},
        {"tools": [search]},
        {"messages": []},
    ]:
        error = check_raises(lambda: ask(**changes), anthropic.BadRequestError)
        assert error.body["error"]["type"] == "invalid_request_error", error.body
        assert error.request_id, error


def picture():
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    image = {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}
    content = [{"type": "text", "text": "What is in the picture?"}, image]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [image]}
    tool = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}
    read = [{"role": "assistant", "content": [tool]}, {"role": "user", "content": [result]}]
    for changes in (
        {"messages": [{"role": "user", "content": content}]},
        {"messages": [*HELLO, *read], "tools": [WEATHER]},
    ):
        tokens = lambda answer: answer.usage.input_tokens + answer.usage.cache_read_input_tokens
        check_picture(lambda: ask(**changes), anthropic.BadRequestError, tokens)
    document = {"type": "document", "source": source}
    wrong = [{"role": "user", "content": [document]}]
    check_raises(lambda: ask(messages=wrong), anthropic.BadRequestError, "document")


def unknown_model():
    error = check_raises(lambda: ask(model="claude-nothing"), anthropic.NotFoundError)
    assert error.body["error"]["type"] == "not_found_error", error.body


def context_overflow():
    long = [{"role": "user", "content": TOO_LONG}]
    error = check_raises(lambda: ask(messages=long), anthropic.BadRequestError, "prompt is too long")
    assert error.body["error"]["type"] == "invalid_request_error", error.body


def wrong_key():
    stranger = client.with_options(api_key="wrong")
    error = check_raises(lambda: stranger.messages.create(**arguments()), anthropic.AuthenticationError)
    assert error.body["error"]["type"] == "authentication_error", error.body


def cancel():
    events = ask(stream=True, max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS)
    next(iter(events))
    check_freed(events.close)


report(
    chat="the package speaks Anthropic's API only",
    stream=[stream, thinking_stream],
    tools_auto=[tools_auto, tools_stream, tools_round_trip],
    tools_required=[tools_any],
    tools_named=[tools_named_and_none],
    structured_output=[structured_output],
    completions="the package speaks Anthropic's API only",
    responses="the package speaks Anthropic's API only",
    messages=[message, picture, thinking, stop_sequences, cache, count_tokens],
    embeddings="Anthropic's API has none",
    errors=[bad_request, unknown_model, context_overflow, wrong_key],
    cancel=[cancel],
)
