"""llm by Simon Willison, with OpenAI-compatible models in extra-openai-models.yaml."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HOME = pathlib.Path(tempfile.mkdtemp())
os.environ["LLM_USER_PATH"] = str(HOME)

import llm
import openai
from support import ENDLESS_TOKENS, KEY, MODEL, QUESTION, TOO_LONG, URL, check_freed, check_raises, report

# YAML reads JSON.
MODELS = [
    {"model_id": MODEL, "supports_schema": True, "supports_tools": True},
    {"model_id": "merlin-responses", "responses": True, "supports_schema": True, "supports_tools": True},
    {"model_id": "merlin-completion", "completion": True},
    {"model_id": "other", "model_name": "gpt-9"},
]
USUAL = {"model_name": MODEL, "api_base": f"{URL}/v1", "api_key_name": "lanner"}
(HOME / "extra-openai-models.yaml").write_text(json.dumps([{**USUAL, **model} for model in MODELS]))
(HOME / "keys.json").write_text(json.dumps({"lanner": KEY}))
SCHEMA = {
    "type": "object",
    "properties": {"bird": {"type": "string", "maxLength": 20}, "legs": {"enum": [2, 4]}},
    "required": ["bird", "legs"],
    "additionalProperties": False,
}
CHAT = llm.get_model(MODEL)
SHORT = {"temperature": 0, "max_tokens": 200}


def get_weather(city: str) -> str:
    "Get the weather for a city"
    return f"7 degrees in {city}"


def chat():
    response = CHAT.prompt("Say hello.", stream=False, system="Be brief.", **SHORT)
    assert response.text() and response.usage().output > 0, response
    conversation = CHAT.conversation()
    assert conversation.prompt("Say hello.", **SHORT).text() and conversation.prompt("Again.", **SHORT).text()


def command(*arguments):
    return [pathlib.Path(sys.executable).parent / "llm", "-m", MODEL, *arguments]


def command_line():
    options = ("-o", "temperature", "0", "-o", "max_tokens", "50")
    done = subprocess.run(command(*options, "Say hello."), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip(), done


def stream():
    parts = list(CHAT.prompt("Say hello.", **SHORT))
    assert len(parts) > 1 and "".join(parts) == CHAT.prompt("Say hello.", stream=False, **SHORT).text(), parts


def tools():
    for streams in (True, False):
        chain = CHAT.chain(QUESTION, tools=[get_weather], options=SHORT, stream=streams)
        first, *rest = list(chain.responses())
        (call,) = first.tool_calls()
        assert call.name == "get_weather" and call.arguments == {"city": "Oslo"}, call
        assert rest and rest[-1].text(), rest


def structured_output():
    for streams in (True, False):
        bird = json.loads(CHAT.prompt("Name a bird.", schema=SCHEMA, stream=streams, **SHORT).text())
        assert isinstance(bird["bird"], str) and bird["legs"] in (2, 4), bird


def completions():
    assert llm.get_model("merlin-completion").prompt("The owl", temperature=0, max_tokens=5).text()


def responses():
    model = llm.get_model("merlin-responses")
    assert model.prompt("Say hello.", stream=False, **SHORT).text()
    assert "".join(model.prompt("Say hello.", **SHORT))
    bird = json.loads(model.prompt("Name a bird.", schema=SCHEMA, **SHORT).text())
    assert bird["legs"] in (2, 4), bird


def bad_request():
    # The vocabulary has no such token.
    biased = CHAT.prompt("Hi.", logit_bias={"99999": 1})
    check_raises(biased.text, openai.BadRequestError, "token id 99999")
    check_raises(lambda: llm.get_model("other").prompt("Hi.").text(), openai.NotFoundError, "gpt-9")


def context_overflow():
    words = "maximum context length is 8192 tokens"
    check_raises(lambda: CHAT.prompt(TOO_LONG).text(), openai.BadRequestError, words)


def wrong_key():
    check_raises(lambda: CHAT.prompt("Hi.", key="wrong").text(), openai.AuthenticationError)


def cancel():
    # No option keeps an answer from ending; a minimum in a schema does.
    numbers = {"type": "array", "items": {"enum": [1]}, "minItems": ENDLESS_TOKENS}
    schema = {"type": "object", "properties": {"numbers": numbers}, "required": ["numbers"]}
    options = ("-o", "max_tokens", str(ENDLESS_TOKENS), "--schema", json.dumps(schema))
    with subprocess.Popen(command(*options, "Count."), stdout=subprocess.PIPE) as program:
        program.stdout.read(1)
        check_freed(lambda: program.send_signal(signal.SIGINT))


report(
    chat=[chat, command_line],
    stream=[stream],
    tools_auto=[tools],
    tools_required="it has no option for tool_choice",
    tools_named="it has no option for tool_choice",
    structured_output=[structured_output],
    completions=[completions],
    responses=[responses],
    messages="extra-openai-models.yaml is for OpenAI's routes",
    embeddings="extra-openai-models.yaml has none",
    errors=[bad_request, context_overflow, wrong_key],
    cancel=[cancel],
)
