"""Runs official clients against a server with the built-in model, and prints a table of their checks.

    python3 tools/contract/run.py path/to/lanner [CLIENT...]

A client is a file in clients/: a program that gets the server's address in LANNER_URL and prints
one line of JSON per check: {"check": NAME, "ok": BOOL, "detail": TEXT}. Python clients run with this
interpreter, .mjs files with node; a client whose package is missing prints {"skip": REASON}.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
START_SECONDS = 120
CLIENT_SECONDS = 600


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(url, server):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).read()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"the server was not ready within {START_SECONDS} s")


def run_client(path, url):
    program = {".py": sys.executable, ".mjs": "node"}[path.suffix]
    try:
        done = subprocess.run(
            [program, str(path)],
            env={**os.environ, "LANNER_URL": url},
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
        )
    except FileNotFoundError:
        return [{"skip": f"{program} is not installed"}]
    except subprocess.TimeoutExpired:
        return [{"check": "client", "ok": False, "detail": f"not done within {CLIENT_SECONDS} s"}]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        rows.append({"check": "client", "ok": False, "detail": f"exit {done.returncode}: {last}"})
    return rows or [{"check": "client", "ok": False, "detail": "it reported no check"}]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    clients = sorted(path for path in (HERE / "clients").iterdir() if path.suffix in (".py", ".mjs"))
    wanted = sys.argv[2:]
    clients = [path for path in clients if not wanted or path.stem in wanted]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.argv[1], "serve", "--port", str(port), "--disk-cache", "off"]
    failed = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(url, server)
            for path in clients:
                for row in run_client(path, url):
                    if "skip" in row:
                        print(f"{path.stem:<16} skipped: {row['skip']}")
                        continue
                    failed += not row["ok"]
                    detail = "" if row["ok"] else f"  {row.get('detail', '')[:160]}"
                    print(f"{path.stem:<16} {row['check']:<32} {'ok' if row['ok'] else 'FAILED'}{detail}")
        finally:
            server.terminate()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
