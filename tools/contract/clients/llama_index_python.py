"""llama-index: OpenAILike and OpenAILikeResponses, and embeddings."""

import openai
import pydantic
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from support import (
    ENDLESS,
    ENDLESS_TOKENS,
    KEY,
    MODEL,
    QUESTION,
    TOO_LONG,
    URL,
    check_freed_by_cancelling,
    check_raises,
    check_weather,
    report,
)

SERVER = {"model": MODEL, "api_base": f"{URL}/v1", "api_key": KEY, "context_window": 8192}
USUAL = {**SERVER, "temperature": 0, "max_retries": 0, "is_chat_model": True}
HELLO = [ChatMessage(role="user", content="Say hello.")]


def chat_model(**changes):
    usual = {**USUAL, "max_tokens": 200, "is_function_calling_model": True}
    return OpenAILike(**{**usual, **changes})


def responses_model(**changes):
    usual = {**USUAL, "max_output_tokens": 200, "is_function_calling_model": True}
    return OpenAILikeResponses(**{**usual, **changes})


def get_weather(city: str) -> str:
    """Get the weather for a city"""
    return '{"temperature": 7}'


WEATHER = FunctionTool.from_defaults(get_weather)


class Bird(pydantic.BaseModel):
    """A bird."""

    bird: str = pydantic.Field(max_length=20)
    legs: int = pydantic.Field(ge=0, le=4)


def chat():
    answer = chat_model().chat(HELLO)
    assert answer.message.content and answer.raw.usage.completion_tokens > 0, answer


def stream():
    pieces = list(chat_model().stream_chat(HELLO))
    text = "".join(piece.delta or "" for piece in pieces)
    assert len(pieces) > 1 and text == chat_model().chat(HELLO).message.content, text


def the_call(model, answer):
    (call,) = model.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather" and call.tool_id, call
    return call


def tools_auto():
    model = chat_model()
    first = model.chat_with_tools([WEATHER], user_msg=QUESTION)
    call = the_call(model, first)
    assert check_weather(call.tool_kwargs) == "Oslo", call
    question = ChatMessage(role="user", content=QUESTION)
    result = ChatMessage(
        role="tool", content='{"temperature": 7}', additional_kwargs={"tool_call_id": call.tool_id}
    )
    answer = model.chat_with_tools([WEATHER], chat_history=[question, first.message, result])
    assert answer.message.content, answer
    assert "7" in str(model.predict_and_call([WEATHER], user_msg=QUESTION)), "the tool was not called"


def tools_stream():
    model = chat_model()
    *_, last = model.stream_chat_with_tools([WEATHER], user_msg=QUESTION)
    assert check_weather(the_call(model, last).tool_kwargs) == "Oslo", last


def tools_required():
    model = chat_model()
    answer = model.chat_with_tools([WEATHER], user_msg="Say hello.", tool_required=True)
    for call in model.get_tool_calls_from_response(answer):
        check_weather(call.tool_kwargs)


def tools_named():
    model = chat_model()
    answer = model.chat_with_tools([WEATHER], user_msg="Say hello.", tool_choice="get_weather")
    check_weather(the_call(model, answer).tool_kwargs)


def structured_output():
    prompt = PromptTemplate("Name a bird.")
    by_tool = chat_model().structured_predict(Bird, prompt)
    by_schema = chat_model(should_use_structured_outputs=True).structured_predict(Bird, prompt)
    assert isinstance(by_tool, Bird) and isinstance(by_schema, Bird), (by_tool, by_schema)
    # A stream of tool calls stays blank in this package; it reads them where it no longer puts them.
    *_, last = chat_model(should_use_structured_outputs=True).stream_structured_predict(Bird, prompt)
    Bird.model_validate(last.model_dump())


def completions():
    model = chat_model(is_chat_model=False, is_function_calling_model=False, max_tokens=5)
    whole = model.complete("The owl").text
    assert whole and "".join(part.delta for part in model.stream_complete("The owl")) == whole, whole


def responses():
    model = responses_model()
    answer = model.chat(HELLO)
    assert answer.message.content, answer
    assert "".join(part.delta or "" for part in model.stream_chat(HELLO)) == answer.message.content
    first = model.chat_with_tools([WEATHER], user_msg=QUESTION)
    assert check_weather(the_call(model, first).tool_kwargs) == "Oslo", first


def embeddings():
    model = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key=KEY, max_retries=0)
    one, other = model.get_text_embedding_batch(["an owl", "a stone"])
    assert len(one) == len(other) > 1 and one != other


def bad_request():
    for wire in (chat_model, responses_model):
        check_raises(lambda: wire(additional_kwargs={"top_p": -1}).chat(HELLO), openai.BadRequestError, "top_p")
        check_raises(lambda: wire(model="gpt-9").chat(HELLO), openai.NotFoundError, "gpt-9")


def context_overflow():
    long = [ChatMessage(role="user", content=TOO_LONG)]
    words = "maximum context length is 8192 tokens"
    for wire in (chat_model, responses_model):
        check_raises(lambda: wire().chat(long), openai.BadRequestError, words)


def wrong_key():
    for wire in (chat_model, responses_model):
        check_raises(lambda: wire(api_key="wrong").chat(HELLO), openai.AuthenticationError)


async def cancel():
    model = chat_model(max_tokens=ENDLESS_TOKENS, additional_kwargs={"extra_body": ENDLESS})
    await check_freed_by_cancelling(await model.astream_chat(HELLO))


report(
    chat=[chat],
    stream=[stream],
    tools_auto=[tools_auto, tools_stream],
    tools_required=[tools_required],
    tools_named=[tools_named],
    structured_output=[structured_output],
    completions=[completions],
    responses=[responses],
    messages="OpenAILike speaks OpenAI's routes only",
    embeddings=[embeddings],
    errors=[bad_request, context_overflow, wrong_key],
    cancel=[cancel],
)
