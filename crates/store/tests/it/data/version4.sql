PRAGMA application_id = 1279348306;
PRAGMA user_version = 4;
CREATE TABLE conversation (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    title TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    leaf TEXT,
    settings TEXT NOT NULL,
    UNIQUE (owner, id)
);
CREATE INDEX conversation_updated ON conversation (updated, number);
CREATE INDEX conversation_of_owner ON conversation (owner, updated, number);

CREATE TABLE message (
    number INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation (number) ON DELETE CASCADE,
    id TEXT NOT NULL,
    parent TEXT,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    created INTEGER NOT NULL,
    reasoning TEXT,
    model TEXT,
    tool_calls TEXT,
    usage TEXT,
    other TEXT,
    UNIQUE (conversation, id)
);

CREATE TABLE request (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    id TEXT NOT NULL,
    route TEXT NOT NULL,
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
CREATE VIRTUAL TABLE search USING fts5(words, detail = none, columnsize = 0, tokenize = 'ascii', prefix = '2 3');
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);
ALTER TABLE conversation ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;
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

CREATE TABLE blob (
    digest TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
);
CREATE TABLE picture (
    message INTEGER NOT NULL REFERENCES message (number) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    head TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (message, position)
) WITHOUT ROWID;
CREATE INDEX picture_digest ON picture (digest);
CREATE TRIGGER picture_removed AFTER DELETE ON picture
WHEN NOT EXISTS (SELECT 1 FROM picture WHERE digest = old.digest)
BEGIN
    DELETE FROM blob WHERE digest = old.digest;
END;

INSERT INTO conversation (number, owner, id, title, created, updated, leaf, settings) VALUES
    (1, '', 'c1', 'Which birds hunt at night?', 1700000000000, 1700000001000, 'a', '{"system":"Be terse."}'),
    (2, 'ann', 'c2', 'Storks', 1700000000000, 1700000002000, 'q', '{}');
INSERT INTO message (number, conversation, id, parent, role, text, created, model, usage) VALUES
    (1, 1, 'q', NULL, 'user', 'Which birds hunt at night?', 1700000000000, NULL, NULL),
    (2, 1, 'a', 'q', 'assistant', 'Owls and nightjars.', 1700000001000, 'owl', '{"completion_tokens":4}'),
    (3, 2, 'q', NULL, 'user', '鹳 are storks', 1700000002000, NULL, NULL);
INSERT INTO request (at, id, route, status, outcome, model, key, finish, miss, prompt_tokens, cached_tokens,
    completion_tokens, reasoning_tokens, drafted, accepted, first_token_ms, decode_ms, tokens_per_second,
    duration_ms) VALUES
    (1700003000000, 'r1', 'POST /v1/messages', 200, 'answered', 'owl', '', 'stop', '', 20, 8, 4, 0, 0, 0, 50.0,
     75.0, 40.0, 130.0),
    (1700003001000, 'r2', 'POST /v1/messages', 500, 'failed', 'owl', '', '', '', 0, 0, 0, 0, 0, 0, NULL, NULL,
     NULL, 2.0),
    (1700006400000, 'r3', 'POST /v1/messages', 200, 'cancelled', 'owl', '', '', '', 5, 0, 1, 0, 0, 0, 60.0, NULL,
     NULL, 90.0);

INSERT INTO search (rowid, words) VALUES
    (1048576, 'and at birds hunt night nightjars owls which'),
    (2097152, 'are storks 鹳');
UPDATE conversation SET indexed = 1;

INSERT INTO usage VALUES
    (472223, 'owl', 2, 1, 0, 20, 8, 4, 0, 0, 0, 1, 50.0, 3.0, 75.0, 132.0),
    (472224, 'owl', 1, 0, 1, 5, 0, 1, 0, 0, 0, 1, 60.0, 0.0, 0.0, 90.0);
INSERT INTO blob (digest, bytes) VALUES
    ('4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a', x'01');
INSERT INTO picture (message, position, head, digest) VALUES
    (1, 0, 'data:image/png;base64,', '4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a');
