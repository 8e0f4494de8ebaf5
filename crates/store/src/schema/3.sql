-- Sums of requests, which stay after the requests themselves are gone. `hour` counts from the Unix epoch.
CREATE TABLE usage (
    hour INTEGER NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    drafted INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    first_tokens INTEGER NOT NULL,
    first_token_ms REAL NOT NULL,
    decoded REAL NOT NULL,
    decode_ms REAL NOT NULL,
    duration_ms REAL NOT NULL,
    PRIMARY KEY (hour, model)
) WITHOUT ROWID;
INSERT INTO usage
SELECT at / 3600000, model, count(*),
       sum(outcome NOT IN ('answered', 'replayed', 'cancelled') AND (outcome <> '' OR status >= 400)),
       sum(outcome = 'cancelled'), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
       sum(reasoning_tokens), sum(drafted), sum(accepted), count(first_token_ms),
       total(first_token_ms), total(tokens_per_second * decode_ms / 1e3), total(decode_ms), total(duration_ms)
FROM request GROUP BY 1, 2;
