"""Checks a running `lanner serve` with OpenAI's own Python client: pip install openai.

    python3 tools/openai_smoke.py --base-url http://127.0.0.1:11436/v1
"""

import argparse

import openai

MESSAGES = [{"role": "user", "content": "Tell me about owls."}]


def check_models(client):
    models = client.models.list().data
    assert len(models) == 1, models
    assert client.models.retrieve(models[0].id).id == models[0].id
    return models[0].id


def check_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=48)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 48
    return choice, usage


def check_stream(client, model, whole, usage):
    stream = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    content, reasoning, reason, streamed_usage = "", "", None, None
    for chunk in stream:
        streamed_usage = chunk.usage or streamed_usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            reason = choice.finish_reason or reason
    assert content == whole.message.content, (content, whole.message.content)
    assert reasoning == (getattr(whole.message, "reasoning_content", None) or "")
    assert reason == whole.finish_reason
    # The second request may hit the cache of the first one's prompt.
    assert streamed_usage.completion_tokens == usage.completion_tokens
    assert streamed_usage.prompt_tokens == usage.prompt_tokens


def check_choices_and_logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=8, n=3, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 1
    for token in answer.choices[0].logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2
        assert token.logprob == token.top_logprobs[0].logprob, "at temperature 0 the likeliest is chosen"


def check_completions(client, model):
    request = {"model": model, "prompt": "Owls are", "temperature": 0, "max_tokens": 16}
    whole = client.completions.create(**request).choices[0].text
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**request, stream=True))
    assert streamed == whole, (streamed, whole)
    scored = client.completions.create(**{**request, "max_tokens": 0}, echo=True, logprobs=1).choices[0]
    assert scored.text == "Owls are"
    assert scored.logprobs.token_logprobs[0] is None
    assert all(score <= 0 for score in scored.logprobs.token_logprobs[1:])


def check_errors(client, model):
    try:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("an unknown model was answered")
    try:
        client.chat.completions.create(model=model, messages=MESSAGES, n=1000)
    except openai.BadRequestError as error:
        assert error.param == "n", error
    else:
        raise AssertionError("n = 1000 was answered")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:11436/v1")
    parser.add_argument("--api-key", default="none")
    arguments = parser.parse_args()
    client = openai.OpenAI(base_url=arguments.base_url, api_key=arguments.api_key, max_retries=0)
    model = check_models(client)
    whole, usage = check_chat(client, model)
    check_stream(client, model, whole, usage)
    check_choices_and_logprobs(client, model)
    check_completions(client, model)
    check_errors(client, model)
    print(f"ok: {model} answered OpenAI's client; {usage.completion_tokens} tokens, streamed as blocking")


if __name__ == "__main__":
    main()
