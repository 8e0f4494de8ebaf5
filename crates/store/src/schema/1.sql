-- Times are milliseconds since the Unix epoch. `number` is the key in this file, `id` the one outside.
CREATE TABLE conversation (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Name of the API key; empty: none.
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    title TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    -- The message at the end of the selected branch.
    leaf TEXT,
    -- JSON object.
    settings TEXT NOT NULL,
    UNIQUE (owner, id)
);
CREATE INDEX conversation_updated ON conversation (updated, number);
CREATE INDEX conversation_of_owner ON conversation (owner, updated, number);

CREATE TABLE message (
    number INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation (number) ON DELETE CASCADE,
    id TEXT NOT NULL,
    -- NULL: it begins the conversation.
    parent TEXT,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    created INTEGER NOT NULL,
    reasoning TEXT,
    model TEXT,
    -- JSON, or NULL.
    tool_calls TEXT,
    usage TEXT,
    -- JSON object of all other fields, or NULL.
    other TEXT,
    UNIQUE (conversation, id)
);

CREATE TABLE request (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    id TEXT NOT NULL,
    route TEXT NOT NULL,
    -- 0: the client left before the answer.
    status INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    model TEXT NOT NULL,
    key TEXT NOT NULL,
    finish TEXT NOT NULL,
    miss TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    drafted INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    first_token_ms REAL,
    decode_ms REAL,
    tokens_per_second REAL,
    duration_ms REAL NOT NULL
);
CREATE INDEX request_at ON request (at);
