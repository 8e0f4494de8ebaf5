"""The official openai package for Python."""

import json

import openai
from support import (
    ENDLESS,
    ENDLESS_TOKENS,
    KEY,
    MODEL,
    PICTURE_URI,
    TOO_LONG,
    URL,
    check_freed,
    check_picture,
    check_raises,
    report,
)

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Get the time in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zone": {"enum": ["utc", "local"]}},
            "required": ["city", "zone"],
        },
    },
}
ASK = [{"role": "user", "content": "What is the weather in Oslo?"}]


def ask(**arguments):
    return client.chat.completions.create(
        **{"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 200, **arguments}
    )


def check_call(choice, name):
    assert choice.finish_reason == "tool_calls", choice
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == name and call.id, call
    return call, json.loads(call.function.arguments)


def models():
    (served,) = client.models.list().data
    assert served.id == MODEL and client.models.retrieve(MODEL).id == MODEL, served


def chat():
    choice = ask(messages=[{"role": "user", "content": "Say hello."}]).choices[0]
    assert choice.message.content and choice.finish_reason in ("stop", "length"), choice


def picture():
    image = {"type": "image_url", "image_url": {"url": PICTURE_URI, "detail": "low"}}
    content = [{"type": "text", "text": "What is in the picture?"}, image]
    messages = [{"role": "user", "content": content}]
    check_picture(lambda: ask(messages=messages), openai.BadRequestError, lambda a: a.usage.prompt_tokens)
    broken = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64,PHN2Zz4="}}]}]
    error = check_raises(lambda: ask(messages=broken), openai.BadRequestError, "SVG")
    assert error.param == "messages[0].content[0].image_url.url", error.body


def responses_picture():
    image = {"type": "input_image", "image_url": PICTURE_URI, "detail": "auto"}
    content = [{"type": "input_text", "text": "What is in the picture?"}, image]
    items = [{"role": "user", "content": content}]
    check_picture(
        lambda: respond(input=items), openai.BadRequestError, lambda answer: answer.usage.input_tokens
    )
    seen = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [image]},
    ]
    check_picture(
        lambda: respond(input=seen), openai.BadRequestError, lambda answer: answer.usage.input_tokens
    )


def stream():
    hello = [{"role": "user", "content": "Say hello."}]
    chunks = list(ask(messages=hello, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1, chunks
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == ask(messages=hello).choices[0].message.content, text
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert finishes[-1] in ("stop", "length") and not any(finishes[:-1]), finishes
    assert chunks[-1].usage.completion_tokens > 0, chunks[-1]


def tools_auto():
    _, arguments = check_call(ask(tools=[WEATHER]).choices[0], "get_weather")
    assert arguments["city"] == "Oslo", arguments


def tools_required():
    choice = ask(tools=[WEATHER, TIME], tool_choice="required", temperature=2, seed=3).choices[0]
    assert choice.finish_reason in ("tool_calls", "length"), choice
    if choice.finish_reason == "tool_calls":
        for call in choice.message.tool_calls:
            assert isinstance(json.loads(call.function.arguments)["city"], str)


def tools_named():
    named = {"type": "function", "function": {"name": "get_time"}}
    _, arguments = check_call(ask(tools=[WEATHER, TIME], tool_choice=named).choices[0], "get_time")
    assert arguments["zone"] in ("utc", "local"), arguments


def tools_none():
    choice = ask(tools=[WEATHER], tool_choice="none").choices[0]
    assert not choice.message.tool_calls and choice.finish_reason != "tool_calls", choice


def tools_not_parallel():
    choice = ask(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0]
    check_call(choice, "get_weather")


def tools_stream():
    name, arguments, finish, pieces = "", "", None, 0
    for chunk in ask(tools=[WEATHER], stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
                pieces += 1
    assert finish == "tool_calls" and name == "get_weather", (finish, name)
    assert json.loads(arguments)["city"] == "Oslo" and pieces > 2, (arguments, pieces)


def tools_round_trip():
    call, _ = check_call(ask(tools=[WEATHER]).choices[0], "get_weather")
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 7}'},
    ]
    choice = ask(messages=turns, tools=[WEATHER]).choices[0]
    assert choice.message.content, choice


PATCH = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "description": "Edits files",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "regex", "definition": r"[*]{3} (Begin|End) Patch\n"},
        },
    },
}


def tools_custom():
    named = {"type": "custom", "custom": {"name": "apply_patch"}}
    choice = ask(tools=[WEATHER, PATCH], tool_choice=named, temperature=2, seed=3).choices[0]
    (call,) = choice.message.tool_calls
    assert call.type == "custom" and call.custom.name == "apply_patch" and call.id, call
    assert call.custom.input in ("*** Begin Patch\n", "*** End Patch\n"), call
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump(exclude_none=True)]},
        {"role": "tool", "tool_call_id": call.id, "content": "Done"},
    ]
    assert ask(messages=turns, tools=[PATCH]).choices[0].message.content is not None


def functions_deprecated():
    choice = ask(functions=[WEATHER["function"]], function_call={"name": "get_weather"}).choices[0]
    assert choice.finish_reason == "function_call", choice
    assert choice.message.function_call.name == "get_weather", choice
    json.loads(choice.message.function_call.arguments)


def tools_invalid():
    try:
        ask(tools=[WEATHER, WEATHER])
    except openai.BadRequestError as error:
        assert error.param == "tools[1].function.name", error
    else:
        raise AssertionError("two tools of one name were accepted")


SCHEMA = {
    "type": "object",
    "properties": {"bird": {"type": "string", "maxLength": 20}, "legs": {"enum": [2, 4]}},
    "required": ["bird", "legs"],
    "additionalProperties": False,
}


def check_bird(text):
    bird = json.loads(text)
    assert isinstance(bird["bird"], str) and bird["legs"] in (2, 4) and len(bird) == 2, bird


def structured_output():
    schema = {"name": "bird", "strict": True, "schema": SCHEMA}
    for seed in range(3):
        choice = ask(
            response_format={"type": "json_schema", "json_schema": schema}, temperature=2, seed=seed
        ).choices[0]
        assert choice.finish_reason == "stop", choice
        check_bird(choice.message.content)


def structured_output_invalid():
    schema = {"name": "bird", "schema": {"not": {}}}
    try:
        ask(response_format={"type": "json_schema", "json_schema": schema})
    except openai.BadRequestError as error:
        assert "not" in error.message, error
    else:
        raise AssertionError("a schema that cannot be honoured was accepted")


def unused_parameters():
    choice = ask(
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        safety_identifier="s",
        prompt_cache_key="k",
        prediction={"type": "content", "content": "x"},
    ).choices[0]
    assert choice.message.content, choice


def respond(**arguments):
    return client.responses.create(
        **{"model": MODEL, "temperature": 0, "max_output_tokens": 200, **arguments}
    )


def responses():
    response = respond(input="Say hello.")
    assert response.output_text and response.status in ("completed", "incomplete"), response
    assert client.responses.retrieve(response.id).output_text == response.output_text
    following = respond(input="Again.", previous_response_id=response.id)
    assert following.previous_response_id == response.id and following.output_text, following
    assert client.responses.input_items.list(response.id).data[0].type == "message"
    client.responses.delete(response.id)
    try:
        client.responses.retrieve(response.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a deleted response is still there")


def responses_stream():
    text, kinds = "", []
    for event in respond(input="Say hello.", stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert kinds[0] == "response.created", kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert event.response.output_text == text and text, (text, event)


def responses_tools():
    tool = {"type": "function", "strict": True, **WEATHER["function"]}
    response = respond(input=ASK[0]["content"], tools=[tool])
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert call.name == "get_weather" and json.loads(call.arguments)["city"] == "Oslo", call
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}
    answer = respond(input=[output], previous_response_id=response.id, tools=[tool])
    assert answer.output, answer


def responses_structured_output():
    text = {"format": {"type": "json_schema", "name": "bird", "strict": True, "schema": SCHEMA}}
    check_bird(respond(input="Name a bird.", text=text).output_text)


def embeddings():
    texts = ["an owl", "a stone"]
    # The package asks for base64 unless told otherwise, and decodes it.
    decoded = client.embeddings.create(model=MODEL, input=texts).data
    floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float").data
    assert [row.index for row in decoded] == [0, 1], decoded
    for one, other in zip(decoded, floats):
        assert len(one.embedding) == len(other.embedding) > 1
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding)) < 1e-6
    assert decoded[0].embedding != decoded[1].embedding


def completions():
    answer = client.completions.create(
        model=MODEL, prompt=["The owl", "A hare"], max_tokens=5, echo=True, logprobs=2, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1], answer
    for choice, prompt in zip(answer.choices, ("The owl", "A hare")):
        scores = choice.logprobs
        assert choice.text.startswith(prompt) and "".join(scores.tokens) == choice.text, choice
        assert scores.token_logprobs[0] is None and max(scores.token_logprobs[1:]) <= 0, scores
    parts = client.completions.create(model=MODEL, prompt="The owl", max_tokens=5, stream=True, temperature=0)
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text.removeprefix("The owl")


def bad_request():
    error = check_raises(lambda: ask(temperature=-1), openai.BadRequestError, "temperature")
    assert error.param == "temperature" and error.type == "invalid_request_error", error.body
    assert error.request_id, error


def unknown_model():
    error = check_raises(lambda: ask(model="gpt-9"), openai.NotFoundError, "gpt-9")
    assert error.code == "model_not_found", error.body


def context_overflow():
    long = [{"role": "user", "content": TOO_LONG}]
    words = "This model's maximum context length is 8192 tokens"
    error = check_raises(lambda: ask(messages=long), openai.BadRequestError, words)
    assert error.code == "context_length_exceeded", error.body
    error = check_raises(lambda: respond(input=TOO_LONG), openai.BadRequestError, words)
    assert error.code == "context_length_exceeded", error.body


def wrong_key():
    stranger = client.with_options(api_key="wrong")
    for call in (
        lambda: stranger.chat.completions.create(model=MODEL, messages=ASK),
        lambda: stranger.responses.create(model=MODEL, input="x"),
        lambda: stranger.models.list(),
    ):
        error = check_raises(call, openai.AuthenticationError)
        assert error.code == "invalid_api_key", error.body


def cancel():
    for start in (
        lambda: ask(stream=True, max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS),
        lambda: respond(input="Hi.", stream=True, max_output_tokens=ENDLESS_TOKENS, extra_body=ENDLESS),
    ):
        stream = start()
        next(iter(stream))
        check_freed(stream.close)


report(
    chat=[models, chat, picture, unused_parameters],
    stream=[stream],
    tools_auto=[tools_auto, tools_stream, tools_round_trip, tools_none, tools_invalid],
    tools_required=[tools_required, tools_not_parallel],
    tools_named=[tools_named, tools_custom, functions_deprecated],
    structured_output=[structured_output, structured_output_invalid],
    completions=[completions],
    responses=[responses, responses_picture, responses_stream, responses_tools, responses_structured_output],
    messages="the package speaks OpenAI's API only",
    embeddings=[embeddings],
    errors=[bad_request, unknown_model, context_overflow, wrong_key],
    cancel=[cancel],
)
