"""instructor: answers as pydantic models, in each of its modes for OpenAI's and Anthropic's routes."""

from collections.abc import Iterable

import anthropic
import instructor
import openai
import pydantic
from instructor.core.exceptions import InstructorRetryException
from support import ENDLESS_TOKENS, KEY, MODEL, TOO_LONG, URL, check_freed_by_cancelling, check_raises, report

OPENAI = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ANTHROPIC = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
ASK = [{"role": "user", "content": "An owl has two legs. Name the bird and its number of legs."}]
ONE_SPEAKER = "it asks for models by calls or by JSON, never for text"


class Bird(pydantic.BaseModel):
    """A bird."""

    model_config = pydantic.ConfigDict(extra="forbid")
    bird: str = pydantic.Field(max_length=20)
    legs: int = pydantic.Field(ge=0, le=4)


class City(pydantic.BaseModel):
    """A city."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: str = pydantic.Field(max_length=20)


def ask(mode, **changes):
    usual = {"model": MODEL, "messages": ASK, "max_retries": 0}
    if mode.name.startswith("ANTHROPIC"):
        usual |= {"max_tokens": 200, "extra_body": {"temperature": 0}}
        client = instructor.from_anthropic(ANTHROPIC, mode=mode)
    elif mode.name.startswith("RESPONSES"):
        usual |= {"max_output_tokens": 200, "temperature": 0}
        client = instructor.from_openai(OPENAI, mode=mode)
    else:
        usual |= {"max_tokens": 200, "temperature": 0}
        client = instructor.from_openai(OPENAI, mode=mode)
    return client.create(**{**usual, "response_model": Bird, **changes})


def check_mode(mode):
    bird = ask(mode)
    assert isinstance(bird, Bird), bird


def tools():
    check_mode(instructor.Mode.TOOLS)


def tools_strict():
    check_mode(instructor.Mode.TOOLS_STRICT)


def tools_parallel():
    answer = ask(instructor.Mode.PARALLEL_TOOLS, response_model=Iterable[Bird | City])
    assert all(isinstance(item, Bird | City) for item in answer)


def json_schema():
    check_mode(instructor.Mode.JSON_SCHEMA)


def json_mode():
    # `json_object` with the schema in the prompt: any JSON object is valid, the model's is a guess.
    try:
        check_mode(instructor.Mode.JSON)
    except InstructorRetryException as error:
        assert "validation error" in str(error), error


def stream():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(OPENAI, mode=mode)
        parts = list(
            client.create_partial(
                model=MODEL, messages=ASK, response_model=Bird, temperature=0, max_tokens=200
            )
        )
        Bird.model_validate(parts[-1].model_dump())


def stream_of_models():
    client = instructor.from_openai(OPENAI, mode=instructor.Mode.TOOLS)
    for city in client.create_iterable(
        model=MODEL, messages=ASK, response_model=City, temperature=0, max_tokens=200
    ):
        assert isinstance(city, City), city


def responses():
    check_mode(instructor.Mode.RESPONSES_TOOLS)


def messages():
    check_mode(instructor.Mode.ANTHROPIC_TOOLS)


def context_overflow():
    long = [{"role": "user", "content": TOO_LONG}]
    words = "maximum context length is 8192 tokens"
    check_raises(lambda: ask(instructor.Mode.TOOLS, messages=long), Exception, words)
    check_raises(lambda: ask(instructor.Mode.ANTHROPIC_TOOLS, messages=long), Exception, words)


def bad_request():
    check_raises(lambda: ask(instructor.Mode.TOOLS, temperature=-1), Exception, "temperature")


class Numbers(pydantic.BaseModel):
    """Numbers."""

    numbers: list[int] = pydantic.Field(min_length=ENDLESS_TOKENS)


async def cancel():
    # Without asyncio the package reads a stream to its end before it returns.
    openai_client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    client = instructor.from_openai(openai_client, mode=instructor.Mode.TOOLS)
    usual = {"model": MODEL, "messages": ASK, "max_tokens": ENDLESS_TOKENS, "max_retries": 0}
    await check_freed_by_cancelling(client.create_partial(response_model=Numbers, **usual))


report(
    chat=ONE_SPEAKER,
    stream=[stream, stream_of_models],
    tools_auto="it always names the tool",
    tools_required=[tools_parallel],
    tools_named=[tools, tools_strict],
    structured_output=[json_schema, json_mode],
    completions=ONE_SPEAKER,
    responses=[responses],
    messages=[messages],
    embeddings=ONE_SPEAKER,
    errors=[bad_request, context_overflow],
    cancel=[cancel],
)
