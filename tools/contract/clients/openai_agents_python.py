"""openai-agents: agents over chat completions and over responses."""

from typing import Literal

import agents
import openai
import pydantic
from openai.types.responses import ResponseTextDeltaEvent
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

agents.set_tracing_disabled(True)


def client(key=KEY):
    return openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)


def chat_model(key=KEY, name=MODEL):
    return agents.OpenAIChatCompletionsModel(model=name, openai_client=client(key))


def responses_model(key=KEY, name=MODEL):
    return agents.OpenAIResponsesModel(model=name, openai_client=client(key))


WIRES = (chat_model, responses_model)


def agent(wire, model=None, **changes):
    settings = {"temperature": 0, "max_tokens": 200, **changes.pop("settings", {})}
    return agents.Agent(
        name="owl", model=model or wire(), model_settings=agents.ModelSettings(**settings), **changes
    )


def weather_tool(cities):
    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the weather for a city"""
        cities.append(city)
        return '{"temperature": 7}'

    return get_weather


class Bird(pydantic.BaseModel):
    """A bird."""

    bird: Literal["owl", "hare"]
    legs: Literal[2, 4]


async def run_chat(wire):
    owl = agent(wire, instructions="Be brief.")
    first = await agents.Runner.run(owl, "Say hello.")
    assert first.final_output and first.context_wrapper.usage.output_tokens > 0, first
    turns = [*first.to_input_list(), {"role": "user", "content": "Again."}]
    assert (await agents.Runner.run(owl, turns)).final_output


async def chat():
    await run_chat(chat_model)


async def responses():
    await run_chat(responses_model)
    owl = agent(responses_model)
    first = await agents.Runner.run(owl, "Say hello.")
    second = await agents.Runner.run(owl, "Again.", previous_response_id=first.last_response_id)
    assert second.final_output and second.last_response_id != first.last_response_id, second


async def stream():
    for wire in WIRES:
        result = agents.Runner.run_streamed(agent(wire), "Say hello.")
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                text += event.data.delta
        assert text and text == result.final_output, (wire, text, result.final_output)


async def tools_auto():
    for wire in WIRES:
        cities = []
        result = await agents.Runner.run(agent(wire, tools=[weather_tool(cities)]), QUESTION)
        assert cities == ["Oslo"] and result.final_output, (wire, cities, result)


async def tools_stream():
    for wire in WIRES:
        cities = []
        result = agents.Runner.run_streamed(agent(wire, tools=[weather_tool(cities)]), QUESTION)
        kinds = [event.item.type async for event in result.stream_events() if event.type == "run_item_stream_event"]
        assert cities == ["Oslo"], (wire, cities)
        assert "tool_call_item" in kinds and kinds[-1] == "message_output_item", (wire, kinds)


async def tools_chosen(choice):
    for wire in WIRES:
        cities = []
        owl = agent(
            wire,
            tools=[weather_tool(cities)],
            settings={"tool_choice": choice, "parallel_tool_calls": False},
            tool_use_behavior="stop_on_first_tool",
        )
        await agents.Runner.run(owl, "Say hello.")
        assert len(cities) == 1, (wire, cities)


async def tools_required():
    await tools_chosen("required")


async def tools_named():
    await tools_chosen("get_weather")


async def handoff():
    for wire in WIRES:
        other = agent(wire, instructions="Be brief.")
        other.name = "hare"
        owl = agent(wire, handoffs=[other], settings={"tool_choice": "required", "parallel_tool_calls": False})
        result = await agents.Runner.run(owl, "Say hello.")
        assert result.last_agent.name == "hare" and result.final_output, (wire, result)


async def structured_output():
    for wire in WIRES:
        result = await agents.Runner.run(agent(wire, output_type=Bird), "Name a bird.")
        assert isinstance(result.final_output, Bird), (wire, result)


def check_error(kind, words, model, prompt="Hi.", settings=None):
    run = lambda: agents.Runner.run(agent(None, model=model, settings=settings or {}), prompt)
    check_raises(run, kind, words)


def bad_request():
    for wire in WIRES:
        check_error(openai.BadRequestError, "top_p", wire(), settings={"top_p": -1})
        check_error(openai.NotFoundError, "gpt-9", wire(name="gpt-9"))


def context_overflow():
    for wire in WIRES:
        check_error(openai.BadRequestError, "maximum context length is 8192 tokens", wire(), TOO_LONG)


def wrong_key():
    for wire in WIRES:
        check_error(openai.AuthenticationError, "key", wire("wrong"))


async def cancel():
    for wire in WIRES:
        settings = {"max_tokens": ENDLESS_TOKENS, "extra_body": ENDLESS}
        result = agents.Runner.run_streamed(agent(wire, settings=settings), "Hi.")
        events = result.stream_events()
        async for event in events:
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                break

        async def cancel_run():
            result.cancel()
            await events.aclose()

        await check_freed_async(cancel_run)


report(
    chat=[chat],
    stream=[stream],
    tools_auto=[tools_auto, tools_stream],
    tools_required=[tools_required, handoff],
    tools_named=[tools_named],
    structured_output=[structured_output],
    completions="it speaks chat only",
    responses=[responses],
    messages="it reaches Anthropic's models through litellm",
    embeddings="it has none",
    errors=[bad_request, context_overflow, wrong_key],
    cancel=[cancel],
)
