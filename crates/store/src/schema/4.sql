-- Pictures of messages. Each file is stored once, by its SHA-256 in hexadecimal digits.
CREATE TABLE blob (
    digest TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
);
CREATE TABLE picture (
    message INTEGER NOT NULL REFERENCES message (number) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    -- Of the data URI, what precedes the base64 text.
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
