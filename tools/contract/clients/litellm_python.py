"""litellm: one interface to many providers, here OpenAI's, Anthropic's and Ollama's routes."""

import json
import os

# Its table of prices is part of the package; it would be downloaded otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import pydantic
from support import (
    ENDLESS,
    ENDLESS_TOKENS,
    KEY,
    MODEL,
    PARAMETERS,
    QUESTION,
    TOO_LONG,
    URL,
    check_freed,
    check_freed_async,
    check_raises,
    check_weather,
    report,
)

litellm.suppress_debug_info = True
litellm.telemetry = False
OPENAI = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY}
OLLAMA = {"model": f"ollama_chat/{MODEL}", "api_base": URL, "api_key": KEY}
WIRES = (OPENAI, ANTHROPIC, OLLAMA)
HELLO = [{"role": "user", "content": "Say hello."}]
ASK = [{"role": "user", "content": QUESTION}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": PARAMETERS,
    },
}
TOOLS = {"messages": ASK, "tools": [WEATHER]}
THINK = {"type": "enabled", "budget_tokens": 1024}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def ask(wire, **changes):
    usual = {"messages": HELLO, "temperature": 0, "max_tokens": 200, "num_retries": 0}
    return litellm.completion(**{**usual, **wire, **changes})


def the_call(answer):
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", answer
    (call,) = choice.message.tool_calls
    assert call.id and call.function.name == "get_weather", call
    return call


def chat():
    for wire in WIRES:
        answer = ask(wire)
        assert answer.choices[0].message.content, answer
        assert answer.choices[0].finish_reason in ("stop", "length"), answer
        assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0, answer.usage


def reasoning():
    question = [{"role": "user", "content": "What is 17 + 25?"}]
    for wire, changes in (
        (OPENAI, {"extra_body": {"enable_thinking": True}}),
        (ANTHROPIC, {"thinking": THINK, "allowed_openai_params": ["thinking"]}),
    ):
        message = ask(wire, messages=question, max_tokens=2000, **changes).choices[0].message
        assert message.reasoning_content and message.content, (wire["model"], message)


def stream():
    for wire in WIRES:
        parts = list(ask(wire, stream=True, stream_options={"include_usage": True}))
        whole = litellm.stream_chunk_builder(parts)
        assert whole.choices[0].message.content == ask(wire).choices[0].message.content, whole
        assert whole.choices[0].finish_reason in ("stop", "length"), whole
        assert whole.usage.completion_tokens > 0, whole.usage


def tools_auto():
    for wire in WIRES:
        assert check_weather(the_call(ask(wire, **TOOLS)).function.arguments) == "Oslo"


def tools_stream():
    for wire in WIRES:
        whole = litellm.stream_chunk_builder(list(ask(wire, stream=True, **TOOLS)))
        assert check_weather(the_call(whole).function.arguments) == "Oslo"


def tools_round_trip():
    for wire in WIRES:
        first = ask(wire, **TOOLS)
        result = {"role": "tool", "tool_call_id": the_call(first).id, "content": '{"temperature": 7}'}
        turns = [*ASK, first.choices[0].message.model_dump(), result]
        answer = ask(wire, messages=turns, tools=[WEATHER])
        assert answer.choices[0].message.content, (wire["model"], answer)


def tools_required():
    for wire in (OPENAI, ANTHROPIC):
        answer = ask(wire, messages=HELLO, tools=[WEATHER], tool_choice="required")
        for call in answer.choices[0].message.tool_calls:
            check_weather(call.function.arguments)


def tools_named():
    for wire in (OPENAI, ANTHROPIC):
        answer = ask(wire, messages=HELLO, tools=[WEATHER], tool_choice=NAMED)
        check_weather(answer.choices[0].message.tool_calls[0].function.arguments)


class Bird(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    bird: str = pydantic.Field(max_length=20)
    legs: int = pydantic.Field(ge=0, le=4)


def structured_output():
    for wire in WIRES:
        answer = ask(wire, response_format=Bird, temperature=1)
        Bird.model_validate_json(answer.choices[0].message.content)


def json_object():
    answer = ask(OPENAI, response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content), dict), answer


def completions():
    wire = {**OPENAI, "model": f"text-completion-openai/{MODEL}"}
    answer = litellm.text_completion(**wire, prompt="The owl", max_tokens=5, logprobs=1, temperature=0)
    assert answer.choices[0].text and len(answer.choices[0].logprobs.token_logprobs) == 5, answer


def responses():
    usual = {**OPENAI, "temperature": 0, "max_output_tokens": 200}
    first = litellm.responses(input="Say hello.", **usual)
    assert first.status in ("completed", "incomplete") and first.output_text, first
    again = litellm.responses(input="Again.", previous_response_id=first.id, **usual)
    assert again.output_text, again
    events = list(litellm.responses(input="Say hello.", stream=True, **usual))
    assert events[-1].type in ("response.completed", "response.incomplete"), events[-1]
    tool = {"type": "function", **WEATHER["function"]}
    answer = litellm.responses(input=QUESTION, tools=[tool], **usual)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert check_weather(call.arguments) == "Oslo", call


async def messages():
    usual = {**ANTHROPIC, "messages": HELLO, "max_tokens": 200}
    answer = await litellm.anthropic.messages.acreate(**usual)
    assert answer["content"][0]["text"] and answer["stop_reason"] in ("end_turn", "max_tokens"), answer
    tool = {"name": "get_weather", "input_schema": PARAMETERS}
    answer = await litellm.anthropic.messages.acreate(
        **{**usual, "tools": [tool], "tool_choice": {"type": "tool", "name": "get_weather"}}
    )
    assert answer["stop_reason"] == "tool_use", answer
    check_weather(answer["content"][-1]["input"])


def embeddings():
    for wire in (OPENAI, {**OPENAI, "model": f"ollama/{MODEL}", "api_base": URL}):
        answer = litellm.embedding(**wire, input=["an owl", "a stone"])
        one, other = (row["embedding"] for row in answer.data)
        assert len(one) == len(other) > 1 and one != other, answer


def bad_request():
    for wire in (OPENAI, ANTHROPIC):
        check_raises(lambda: ask(wire, top_p=-1), litellm.BadRequestError, "top_p")


def context_overflow():
    long = [{"role": "user", "content": TOO_LONG}]
    for wire in (OPENAI, ANTHROPIC):
        check_raises(lambda: ask(wire, messages=long), litellm.ContextWindowExceededError)
    # The package has no such error for Ollama, which cuts prompts.
    words = "maximum context length is 8192 tokens"
    check_raises(lambda: ask(OLLAMA, messages=long), litellm.BadRequestError, words)


def wrong_key():
    for wire in (OPENAI, ANTHROPIC):
        check_raises(lambda: ask(wire, api_key="wrong"), litellm.AuthenticationError)


def unknown_model():
    check_raises(lambda: ask({**OPENAI, "model": "openai/gpt-9"}), litellm.NotFoundError)
    check_raises(lambda: ask({**ANTHROPIC, "model": "anthropic/claude-9"}), litellm.NotFoundError)


def cancel():
    stream = ask(OPENAI, stream=True, max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS)
    next(iter(stream))
    check_freed(stream.close)


async def cancel_async():
    for wire in (OPENAI, ANTHROPIC):
        stream = await litellm.acompletion(
            **wire, messages=HELLO, stream=True, max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS
        )
        await anext(aiter(stream))
        await check_freed_async(stream.aclose)


report(
    chat=[chat, reasoning],
    stream=[stream],
    tools_auto=[tools_auto, tools_stream, tools_round_trip],
    tools_required=[tools_required],
    tools_named=[tools_named],
    structured_output=[structured_output, json_object],
    completions=[completions],
    responses=[responses],
    messages=[messages],
    embeddings=[embeddings],
    errors=[bad_request, context_overflow, wrong_key, unknown_model],
    cancel=[cancel, cancel_async],
)
