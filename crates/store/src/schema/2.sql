-- Words of conversations. The row `number << 20 | n` has words of the conversation `number` that its
-- earlier rows lack; conversation.indexed counts its rows.
CREATE VIRTUAL TABLE search USING fts5(words, detail = none, columnsize = 0, tokenize = 'ascii', prefix = '2 3');
-- Words of removed conversations leave the file too.
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);
ALTER TABLE conversation ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;
