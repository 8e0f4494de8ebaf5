"""Hooks of schemathesis: answers are short, so that a run ends."""

import schemathesis

MOST_TOKENS = 4
# The field that limits an answer, by path.
LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}


def shorten(fields, name):
    """Limits a field that is a number or missing; other values are tests of their own."""
    value = fields.get(name)
    if value is None or isinstance(value, int) and not isinstance(value, bool) and value > MOST_TOKENS:
        fields[name] = MOST_TOKENS


@schemathesis.hook
def before_call(context, case, kwargs):
    body, path = case.body, case.operation.path
    if not isinstance(body, dict):
        return
    if path in LIMITS:
        shorten(body, LIMITS[path])
        # It overrides the other limit.
        if body.get("max_completion_tokens") is not None:
            shorten(body, "max_completion_tokens")
    if path in ("/api/chat", "/api/generate"):
        if body.get("options") is None:
            body["options"] = {}
        options = body["options"]
        if isinstance(options, dict):
            shorten(options, "num_predict")
            # Up to 0 it is as many as fit.
            if isinstance(options["num_predict"], int) and options["num_predict"] < 1:
                options["num_predict"] = MOST_TOKENS
