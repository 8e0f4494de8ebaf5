"""langchain-openai, langchain-anthropic and langchain-ollama."""

import anthropic
import openai
import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from support import (
    ENDLESS,
    ENDLESS_TOKENS,
    KEY,
    MODEL,
    QUESTION,
    TOO_LONG,
    URL,
    check_freed,
    check_freed_async,
    check_raises,
    check_weather,
    report,
)

HEADERS = {"headers": {"Authorization": f"Bearer {KEY}"}}


def openai_chat(**changes):
    usual = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": KEY, "temperature": 0, "max_tokens": 200}
    return ChatOpenAI(**{**usual, "max_retries": 0, "stream_usage": True, **changes})


def openai_responses(**changes):
    return openai_chat(use_responses_api=True, **changes)


def anthropic_chat(**changes):
    usual = {"model": MODEL, "base_url": URL, "api_key": KEY, "temperature": 0, "max_tokens": 200}
    return ChatAnthropic(**{**usual, "max_retries": 0, **changes})


def ollama_chat(**changes):
    usual = {"model": MODEL, "base_url": URL, "client_kwargs": HEADERS, "temperature": 0}
    return ChatOllama(**{**usual, "num_predict": 200, "reasoning": False, **changes})


WIRES = (openai_chat, openai_responses, anthropic_chat, ollama_chat)
WITH_CHOICE = (openai_chat, openai_responses, anthropic_chat)


@tool
def get_weather(city: str) -> str:
    """Get the weather for a city"""
    return '{"temperature": 7}'


class Bird(pydantic.BaseModel):
    """A bird."""

    model_config = pydantic.ConfigDict(extra="forbid")
    bird: str = pydantic.Field(max_length=20)
    legs: int = pydantic.Field(ge=0, le=4)


def chat():
    for wire in (openai_chat, anthropic_chat, ollama_chat):
        answer = wire().invoke("Say hello.")
        assert answer.text and answer.usage_metadata["output_tokens"] > 0, (wire, answer)


def stream():
    for wire in WIRES:
        whole = None
        for chunk in wire().stream("Say hello."):
            whole = chunk if whole is None else whole + chunk
        assert whole.text == wire().invoke("Say hello.").text, (wire, whole)
        assert whole.usage_metadata["output_tokens"] > 0, (wire, whole)


def the_call(answer):
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather" and call["id"] and not answer.invalid_tool_calls, answer
    return call


def tools_auto():
    for wire in WIRES:
        model = wire().bind_tools([get_weather])
        first = model.invoke(QUESTION)
        call = the_call(first)
        assert check_weather(call["args"]) == "Oslo", (wire, call)
        result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
        answer = model.invoke([HumanMessage(QUESTION), first, result])
        assert answer.text and not answer.tool_calls, (wire, answer)


def tools_stream():
    for wire in WIRES:
        whole = None
        for chunk in wire().bind_tools([get_weather]).stream(QUESTION):
            whole = chunk if whole is None else whole + chunk
        assert check_weather(the_call(whole)["args"]) == "Oslo", (wire, whole)


def tools_required():
    for wire in WITH_CHOICE:
        answer = wire().bind_tools([get_weather], tool_choice="any").invoke("Say hello.")
        for call in answer.tool_calls:
            check_weather(call["args"])
        assert answer.tool_calls and not answer.invalid_tool_calls, (wire, answer)


def tools_named():
    for wire in WITH_CHOICE:
        answer = wire().bind_tools([get_weather], tool_choice="get_weather").invoke("Say hello.")
        check_weather(the_call(answer)["args"])


def structured_output():
    for wire, methods in (
        (openai_chat, ("json_schema", "function_calling")),
        (openai_responses, ("json_schema", "function_calling")),
        (anthropic_chat, ("function_calling",)),
        (ollama_chat, ("json_schema",)),
    ):
        for method in methods:
            bird = wire().with_structured_output(Bird, method=method).invoke("Name a bird.")
            assert isinstance(bird, Bird), (wire, method, bird)


def completions():
    usual = {"model": MODEL, "temperature": 0}
    model = OpenAI(**usual, base_url=f"{URL}/v1", api_key=KEY, max_tokens=5)
    assert model.invoke("The owl") and "".join(model.stream("The owl")), "no text"
    assert OllamaLLM(**usual, base_url=URL, client_kwargs=HEADERS, num_predict=5).invoke("The owl")


def responses():
    model = openai_responses(use_previous_response_id=True)
    first = model.invoke("Say hello.")
    assert first.text and first.response_metadata["id"].startswith("resp_"), first
    assert model.invoke([HumanMessage("Say hello."), first, HumanMessage("Again.")]).text


def messages():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    model = anthropic_chat(thinking=thinking, max_tokens=2000, temperature=None)
    answer = model.invoke("What is 17 + 25?")
    assert answer.content[0]["type"] == "thinking" and answer.content[0]["signature"], answer
    assert model.invoke([HumanMessage("What is 17 + 25?"), answer, HumanMessage("And 1 + 1?")]).content


def embeddings():
    # Lengths are checked with tiktoken's vocabularies, which are downloads.
    usual = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": KEY}
    for model in (
        OpenAIEmbeddings(**usual, check_embedding_ctx_length=False),
        OllamaEmbeddings(model=MODEL, base_url=URL, client_kwargs=HEADERS),
    ):
        one, other = model.embed_documents(["an owl", "a stone"])
        assert len(one) == len(model.embed_query("an owl")) > 1 and one != other


def bad_request():
    for wire, kind in ((openai_chat, openai.BadRequestError), (anthropic_chat, anthropic.BadRequestError)):
        check_raises(lambda: wire(top_p=-1).invoke("Hi."), kind, "top_p")


def context_overflow():
    for wire in (openai_chat, openai_responses, anthropic_chat):
        check_raises(lambda: wire().invoke(TOO_LONG), ContextOverflowError)


def wrong_key():
    check_raises(lambda: openai_chat(api_key="wrong").invoke("Hi."), openai.AuthenticationError)
    check_raises(lambda: anthropic_chat(api_key="wrong").invoke("Hi."), anthropic.AuthenticationError)


def cancel():
    stream = openai_chat(max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS).stream("Hi.")
    next(stream)
    check_freed(stream.close)


async def cancel_async():
    for wire in (openai_chat, openai_responses):
        stream = wire(max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS).astream("Hi.")
        await anext(stream)
        await check_freed_async(stream.aclose)


report(
    chat=[chat],
    stream=[stream],
    tools_auto=[tools_auto, tools_stream],
    tools_required=[tools_required],
    tools_named=[tools_named],
    structured_output=[structured_output],
    completions=[completions],
    responses=[responses],
    messages=[messages],
    embeddings=[embeddings],
    errors=[bad_request, context_overflow, wrong_key],
    cancel=[cancel, cancel_async],
)
