"""Runs official clients against a server with the built-in model, and prints a table of their checks.

    python3 tools/contract/run.py path/to/lanner [--docs] [--latest] [CLIENT...]

A client is a row of CLIENTS and a file in clients/, which prints one line of JSON per check (see
clients/support.py). Its packages are installed into a folder of its own under
LANNER_CONTRACT_CACHE (default: ~/.cache/lanner/contract), once for each set of versions. --latest
installs the newest versions, --docs writes docs/clients.md. Exits with 1 if a check failed.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from table import write_docs

HERE = pathlib.Path(__file__).parent
CACHE = pathlib.Path(
    os.environ.get("LANNER_CONTRACT_CACHE") or pathlib.Path.home() / ".cache/lanner/contract"
)
START_SECONDS = 120
INSTALL_SECONDS = 900
CLIENT_SECONDS = 600
KEY = "contract"

# The file of a client, its name, and its packages with the versions in docs/clients.md.
CLIENTS = {
    "openai_python.py": ("openai (Python)", ["openai==3.57.0"]),
    "openai_node.mjs": ("openai (Node)", ["openai==6.49.0", "zod==4.6.7"]),
    "anthropic_python.py": ("anthropic (Python)", ["anthropic==2.13.0"]),
    "ollama_python.py": ("ollama (Python)", ["ollama==0.6.3"]),
    "litellm_python.py": ("litellm", ["litellm==1.110.2"]),
    "langchain_python.py": (
        "langchain",
        ["langchain-openai==1.7.4", "langchain-anthropic==1.7.10", "langchain-ollama==1.1.0"],
    ),
    "llama_index_python.py": (
        "llama-index",
        ["llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"],
    ),
    "instructor_python.py": ("instructor", ["instructor==1.17.0", "anthropic==2.13.0"]),
    "pydantic_ai_python.py": ("pydantic-ai", ["pydantic-ai-slim[openai,anthropic]==2.68.0"]),
    "openai_agents_python.py": ("openai-agents", ["openai-agents==0.24.0"]),
    "vercel_ai.mjs": (
        "Vercel ai",
        [
            "ai==6.0.326",
            "@ai-sdk/openai==3.0.141",
            "@ai-sdk/openai-compatible==2.0.92",
            "@ai-sdk/anthropic==3.0.140",
            "zod==4.6.7",
        ],
    ),
    "simonw_llm.py": ("llm", ["llm==0.36"]),
    "lm_eval_python.py": ("lm-eval", ["lm_eval[api]==0.4.13"]),
}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("clients", nargs="*")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--latest", action="store_true")
    options = parser.parse_args()
    stems = {pathlib.Path(file).stem: file for file in CLIENTS}
    unknown = [name for name in options.clients if name not in stems]
    if unknown:
        sys.exit(f"no client is named {unknown[0]}; there are {', '.join(stems)}")
    if options.docs and options.clients:
        sys.exit("--docs writes the table of all clients: name none")
    files = [stems[name] for name in options.clients or stems]
    folders = {file: install(file, options.latest) for file in files}
    with Server(options.program) as server:
        rows = {file: run_client(file, folder, server.url) for file, folder in folders.items() if folder}
    failed = sum(print_rows(file, rows.get(file)) for file in files)
    if options.docs:
        if failed or len(rows) < len(CLIENTS):
            sys.exit("docs/clients.md stays as it is: a check failed or was skipped")
        titles = {file: (CLIENTS[file][0], installed(file, folders[file])) for file in files}
        write_docs(HERE.parents[1] / "docs/clients.md", titles, rows)
    sys.exit(failed > 0)


def install(file, latest):
    """The folder with the packages of a client; None without npm."""
    packages = [name.split("==")[0] if latest else name for name in CLIENTS[file][1]]
    digest = hashlib.sha256(json.dumps(packages).encode()).hexdigest()[:12]
    folder = CACHE / f"{pathlib.Path(file).stem}-{digest}"
    if (folder / "done").exists() and not latest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"installing {' '.join(packages)}", file=sys.stderr)
    if file.endswith(".mjs"):
        if not shutil.which("npm"):
            return None
        (folder / "package.json").write_text("{}")
        call(["npm", "install", "--silent", *[name.replace("==", "@") for name in packages]], folder)
    else:
        call([sys.executable, "-m", "venv", "."], folder)
        call(["bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages], folder)
    (folder / "done").touch()
    return folder


def call(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def installed(file, folder):
    """The packages of a client with their installed versions."""
    names = [name.split("==")[0].split("[")[0] for name in CLIENTS[file][1]]
    if file.endswith(".mjs"):
        read = lambda name: json.loads((folder / "node_modules" / name / "package.json").read_text())
        return {name: read(name)["version"] for name in names}
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([folder / "bin/python", "-c", code, *names], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


class Server:
    """A server with the built-in model, which requires KEY."""

    def __init__(self, program):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [program, "serve", "--port", str(port), "--disk-cache", "off", "--no-store"],
            env={**os.environ, "LANNER_API_KEY": KEY},
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )

    def __enter__(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).read()
                return self
            except OSError:
                time.sleep(0.2)
        self.process.kill()
        self.log.seek(0)
        sys.exit(f"the server did not start within {START_SECONDS} s:\n{self.log.read()}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def run_client(file, folder, url):
    """The rows that a client prints, and one more if it fails as a whole."""
    if file.endswith(".mjs"):
        # Modules are found from the folder of the file that imports them.
        for name in (file, "support.mjs"):
            shutil.copy(HERE / "clients" / name, folder)
        command = ["node", file]
    else:
        command = [folder / "bin/python", HERE / "clients" / file]
    environment = {**os.environ, "LANNER_URL": url, "LANNER_KEY": KEY, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=CLIENT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [{"cell": "client", "check": "all", "ok": False, "detail": f"no end within {CLIENT_SECONDS} s"}]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"cell"')]
    if done.returncode or not rows:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        rows.append({"cell": "client", "check": "all", "ok": False, "detail": f"exit {done.returncode}: {last}"})
    return rows


def print_rows(file, rows):
    """Prints the checks of a client; how many failed."""
    name = pathlib.Path(file).stem
    if rows is None:
        print(f"{name:<22} skipped: npm is not installed")
        return 0
    for row in rows:
        if "reason" in row:
            continue
        result = "ok" if row["ok"] else f"FAILED  {row['detail'][:300]}"
        print(f"{name:<22} {row['cell']:<18} {row['check']:<30} {result}")
    return sum(not row.get("ok", True) for row in rows)


if __name__ == "__main__":
    main()
