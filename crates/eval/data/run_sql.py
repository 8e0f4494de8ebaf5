"""Runs one generated query on a database in memory. Reads {"setup", "query"} from stdin and writes {"rows"} or
{"error"} to stdout. Only reading is authorised."""

import json
import sqlite3
import sys

MOST_ROWS = 1000
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}  # 33: SQLITE_RECURSIVE
MOST_STEPS = 50_000_000


def limit():
    try:
        import resource
        for name, value in (("RLIMIT_CPU", 5), ("RLIMIT_AS", 512 << 20), ("RLIMIT_FSIZE", 0)):
            resource.setrlimit(getattr(resource, name), (value, value))
    except (ImportError, AttributeError, ValueError, OSError):
        pass  # not every system has every limit


def main():
    task = json.load(sys.stdin)
    limit()
    database = sqlite3.connect(":memory:")
    database.executescript(task["setup"])
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
    steps = 0

    def count():
        nonlocal steps
        steps += 1_000
        return steps > MOST_STEPS

    database.set_progress_handler(count, 1_000)
    try:
        rows = database.execute(task["query"]).fetchmany(MOST_ROWS)
        print(json.dumps({"rows": [list(row) for row in rows]}))
    except (sqlite3.Error, sqlite3.Warning, TypeError, ValueError) as problem:
        print(json.dumps({"error": f"{type(problem).__name__}: {problem}"[:300]}))


main()
