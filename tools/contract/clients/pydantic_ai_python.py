"""pydantic-ai: agents over OpenAI's chat completions and responses, and Anthropic's messages."""

from typing import Literal

import pydantic
from pydantic_ai import Agent, Embedder, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from support import (
    ENDLESS,
    ENDLESS_TOKENS,
    KEY,
    MODEL,
    QUESTION,
    TOO_LONG,
    URL,
    check_freed_async,
    check_raises,
    report,
)


def openai_chat(key=KEY, name=MODEL):
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=key))


def openai_responses(key=KEY, name=MODEL):
    return OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=key))


def anthropic(key=KEY, name=MODEL):
    # The package asks only the models that it knows for JSON of a schema.
    profile = {"supports_json_schema_output": True}
    return AnthropicModel(name, provider=AnthropicProvider(base_url=URL, api_key=key), profile=profile)


WIRES = (openai_chat, openai_responses, anthropic)
SETTINGS = {"temperature": 0, "max_tokens": 200}


def agent(wire, **changes):
    return Agent(wire(), model_settings=SETTINGS, retries=0, **changes)


class Bird(pydantic.BaseModel):
    """A bird."""

    model_config = pydantic.ConfigDict(extra="forbid")
    # The package sends no limits of numbers or lengths.
    bird: Literal["owl", "hare"]
    legs: Literal[2, 4]


async def chat():
    for wire in WIRES:
        result = await agent(wire, instructions="Be brief.").run("Say hello.")
        assert result.output and result.usage.output_tokens > 0, (wire, result)
        following = await agent(wire).run("Again.", message_history=result.all_messages())
        assert following.output, (wire, following)


async def stream():
    for wire in WIRES:
        async with agent(wire).run_stream("Say hello.") as result:
            text = "".join([piece async for piece in result.stream_text(delta=True, debounce_by=None)])
        assert text == (await agent(wire).run("Say hello.")).output, (wire, text)
        assert result.usage.output_tokens > 0, (wire, result.usage)


async def tools_auto():
    for wire in WIRES:
        cities = []

        def get_weather(city: str) -> str:
            """Get the weather for a city"""
            cities.append(city)
            return '{"temperature": 7}'

        result = await agent(wire, tools=[get_weather]).run(QUESTION)
        assert cities == ["Oslo"] and result.output, (wire, cities, result)


async def tools_stream():
    for wire in WIRES:
        cities = []

        def get_weather(city: str) -> str:
            """Get the weather for a city"""
            cities.append(city)
            return '{"temperature": 7}'

        async with agent(wire, tools=[get_weather]).run_stream(QUESTION) as result:
            assert await result.get_output(), wire
        assert cities == ["Oslo"], (wire, cities)


async def tools_required():
    # Two kinds of output are two tools, one of which must be called.
    for wire in WIRES:
        outputs = [ToolOutput(Bird, name="bird"), ToolOutput(Numbers, name="numbers")]
        result = await agent(wire, output_type=outputs).run("Name a bird.")
        assert isinstance(result.output, Bird | Numbers), (wire, result)


async def tools_named():
    for wire in WIRES:
        result = await agent(wire, output_type=ToolOutput(Bird, name="bird")).run("Name a bird.")
        assert isinstance(result.output, Bird), (wire, result)


class Numbers(pydantic.BaseModel):
    """Some numbers."""

    numbers: list[int] = pydantic.Field(max_length=3)


async def structured_output():
    for wire in WIRES:
        result = await agent(wire, output_type=NativeOutput(Bird)).run("Name a bird.")
        assert isinstance(result.output, Bird), (wire, result)
        async with agent(wire, output_type=NativeOutput(Bird)).run_stream("Name a bird.") as result:
            assert isinstance(await result.get_output(), Bird), wire


async def responses():
    model = openai_responses()
    first = await Agent(model, model_settings=SETTINGS).run("Say hello.")
    settings = {**SETTINGS, "openai_previous_response_id": "auto"}
    following = await Agent(model, model_settings=settings).run("Again.", message_history=first.all_messages())
    assert first.output and following.output, following


async def messages():
    thinking = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
    result = await Agent(anthropic(), model_settings=thinking).run("What is 17 + 25?")
    parts = [part.part_kind for part in result.all_messages()[-1].parts]
    assert parts[0] == "thinking" and parts[-1] == "text", parts
    following = await Agent(anthropic(), model_settings=thinking).run(
        "And 1 + 1?", message_history=result.all_messages()
    )
    assert following.output, following


async def embeddings():
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=provider))
    one, other = (await embedder.embed_documents(["an owl", "a stone"])).embeddings
    assert len(one) == len(other) > 1 and list(one) != list(other)


def check_status(wire, status, words, prompt="Hi.", settings=None):
    call = lambda: Agent(wire, model_settings=settings).run_sync(prompt)
    error = check_raises(call, ModelHTTPError, words)
    assert error.status_code == status and error.model_name == wire.model_name, error


def bad_request():
    for wire in WIRES:
        check_status(wire(), 400, "top_p", settings={"top_p": -1})
        check_status(wire(name="gpt-9"), 404, "gpt-9")


def context_overflow():
    for wire in WIRES:
        check_status(wire(), 400, "maximum context length is 8192 tokens", TOO_LONG)


def wrong_key():
    for wire in WIRES:
        check_status(wire("wrong"), 401, "key")


async def cancel():
    settings = {"max_tokens": ENDLESS_TOKENS, "extra_body": ENDLESS}
    for wire in WIRES:
        context = Agent(wire(), model_settings=settings).run_stream("Hi.")
        result = await context.__aenter__()
        await anext(aiter(result.stream_text(delta=True, debounce_by=None)))

        async def leave():
            await context.__aexit__(KeyboardInterrupt, KeyboardInterrupt(), None)

        await check_freed_async(leave)


report(
    chat=[chat],
    stream=[stream],
    tools_auto=[tools_auto, tools_stream],
    tools_required=[tools_required],
    tools_named=[tools_named],
    structured_output=[structured_output],
    completions="it speaks chat only",
    responses=[responses],
    messages=[messages],
    embeddings=[embeddings],
    errors=[bad_request, context_overflow, wrong_key],
    cancel=[cancel],
)
