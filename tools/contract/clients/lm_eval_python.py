"""lm-eval: log-likelihoods and generation on a task of its own, with the server's tokenizer."""

import json
import os
import pathlib
import tempfile

from support import KEY, MODEL, TOO_LONG, URL, check_raises, report

# The key of both models, and no request to any hub.
os.environ |= {"OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from lm_eval.tasks import TaskManager

HOME = pathlib.Path(tempfile.mkdtemp())
os.environ["HF_HOME"] = str(HOME / "hub")
ROWS = [
    {"question": "Q: What is 2 + 2?\nA:", "choices": [" 4", " an owl"], "answer": 0},
    {"question": "Once upon a time there was a", "choices": [" little", " 7421"], "answer": 0},
    {"question": "The owl sat on a", "choices": [" branch", " {{{{"], "answer": 0},
]
TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "generation": {
        "output_type": "generate_until",
        "doc_to_text": "question",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 20},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def evaluate(model, route, task, **changes):
    data = HOME / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    folder = HOME / task
    folder.mkdir(exist_ok=True)
    (folder / "task.yaml").write_text(json.dumps({"task": task, "test_split": "test", **common, **TASKS[task]}))
    results = lm_eval.simple_evaluate(
        model=model,
        model_args={"model": MODEL, "base_url": f"{URL}{route}", "auth_token": KEY, "max_retries": 1},
        tasks=[task],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
        **changes,
    )
    assert len(results["samples"][task]) == len(ROWS), results["samples"]
    return results["results"][task], results["samples"][task]


def multiple_choice():
    scores, samples = evaluate("local-completions", "/v1/completions", "choices")
    assert scores["acc,none"] == 1, samples


def loglikelihood():
    model = LocalCompletionsAPI(
        base_url=f"{URL}/v1/completions", model=MODEL, auth_token=KEY, batch_size=4, max_length=8191
    )
    assert model.tokenizer_backend == "remote", model.tokenizer_backend
    pairs = [("The owl sat on a", " branch"), ("The owl sat on", " a branch"), ("", "The owl")]
    instances = [Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(pairs)]
    together = model.loglikelihood(instances)
    for instance, (score, greedy) in zip(instances, together):
        assert score < 0 and isinstance(greedy, bool), together
        assert model.loglikelihood([instance])[0] == (score, greedy), "a batch changes scores"
    # One text has one score, wherever it is cut.
    (whole,) = model.loglikelihood([Instance("loglikelihood", {}, ("The owl sat", " on a branch"), 0)])
    on = model.loglikelihood([Instance("loglikelihood", {}, ("The owl sat", " on"), 0)])[0][0]
    assert abs(whole[0] - (on + together[1][0])) < 1e-3, (whole, on, together)
    rolling = model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("The owl sat.",), 0)])
    assert rolling[0] < 0, rolling


def generate_until():
    _, samples = evaluate("local-completions", "/v1/completions", "generation")
    assert all(isinstance(sample["filtered_resps"][0], str) for sample in samples), samples


def generate_chat():
    _, samples = evaluate(
        "local-chat-completions", "/v1/chat/completions", "generation", apply_chat_template=True
    )
    answers = [sample["filtered_resps"][0] for sample in samples]
    assert all(answers) and not any("\n" in answer for answer in answers), samples


def chat_model(**changes):
    usual = {"base_url": f"{URL}/v1/chat/completions", "model": MODEL, "auth_token": KEY, "max_retries": 1}
    return LocalChatCompletion(**{**usual, **changes})


def check_refused(model, text, status):
    turns = JsonChatStr(json.dumps([{"role": "user", "content": text}]))
    request = Instance("generate_until", {}, (turns, {"until": ["\n"], "max_gen_toks": 4}), 0)
    check_raises(lambda: model.generate_until([request]), Exception, str(status))


def errors():
    check_refused(chat_model(model="gpt-9"), "Hi.", 404)
    check_refused(chat_model(), TOO_LONG, 400)


def wrong_key():
    os.environ["OPENAI_API_KEY"] = "wrong"
    try:
        check_refused(chat_model(auth_token="wrong"), "Hi.", 401)
    finally:
        os.environ["OPENAI_API_KEY"] = KEY


MEASURES = "it measures models by scores and whole texts"
report(
    chat=[generate_chat],
    stream=MEASURES,
    tools_auto=MEASURES,
    tools_required=MEASURES,
    tools_named=MEASURES,
    structured_output=MEASURES,
    completions=[multiple_choice, loglikelihood, generate_until],
    responses=MEASURES,
    messages=MEASURES,
    embeddings=MEASURES,
    errors=[errors, wrong_key],
    cancel="it never closes a request before its end",
)
