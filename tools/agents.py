"""Runs coding agents, each against Lanner with a scripted model, and prints a table of what they did.

    python3 tools/agents.py [--docs] [--latest] [--prompts FOLDER] [AGENT...]

Installs the agents' packages into folders of their own under LANNER_AGENTS_CACHE (default:
~/.cache/lanner/agents), once for each version, and runs the tests `agents` of the package lanner,
which start each by `lanner launch` and check that it edits a file, and that the model sees a
picture that it reads. --latest installs the newest versions, --docs writes docs/agents.md,
--prompts keeps what the agents sent. Exits with 1 if one failed.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
CACHE = pathlib.Path(os.environ.get("LANNER_AGENTS_CACHE") or pathlib.Path.home() / ".cache/lanner/agents")
DOCS = ROOT / "docs/agents.md"
MARKS = ("<!-- generated: agents -->\n", "<!-- end: agents -->\n")
INSTALL_SECONDS = 900

# The package of each agent, with the version in docs/agents.md, and its registry.
AGENTS = {
    "claude": ("npm", "@anthropic-ai/claude-code", "2.1.197"),
    "codex": ("npm", "@openai/codex", "0.169.0"),
    "opencode": ("npm", "opencode-ai", "1.18.33"),
    "aider": ("pip", "aider-chat", "0.86.2"),
    "cline": ("npm", "cline", "3.0.65"),
    "pi": ("npm", "@mariozechner/pi-coding-agent", "0.73.1"),
    "qwen": ("npm", "@qwen-code/qwen-code", "0.15.10"),
}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("agents", nargs="*")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--latest", action="store_true")
    parser.add_argument("--prompts", type=pathlib.Path)
    options = parser.parse_args()
    unknown = [name for name in options.agents if name not in AGENTS]
    if unknown:
        sys.exit(f"no agent is named {unknown[0]}; there are {', '.join(AGENTS)}")
    if options.docs and options.agents:
        sys.exit("--docs writes the table of all agents: name none")
    names = options.agents or list(AGENTS)
    chosen = CACHE / "chosen"
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir(parents=True)
    versions = {}
    for name in names:
        folder, versions[name] = install(name, options.latest)
        (chosen / name).symlink_to(folder)
    rows, passed = run(chosen, options.prompts)
    for row in rows:
        print(f"{row['agent']:<10} {versions[row['agent']]:<10} {row}")
    if options.docs:
        if not passed or len(rows) < len(AGENTS):
            sys.exit("docs/agents.md stays as it is: an agent failed")
        write_docs(rows, versions)
    sys.exit(not passed)


def install(name, latest):
    """The folder with an agent, and its version."""
    registry, package, pinned = AGENTS[name]
    folder = CACHE / (f"{name}-latest" if latest else f"{name}-{pinned}")
    if latest or not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"installing {package}", file=sys.stderr)
        if registry == "npm":
            (folder / "package.json").write_text("{}")
            options = ["--loglevel=error", "--no-audit", "--no-fund"]
            call(["npm", "install", *options, package if latest else f"{package}@{pinned}"], folder)
        else:
            call([sys.executable, "-m", "venv", "."], folder)
            requirement = package if latest else f"{package}=={pinned}"
            call(["bin/pip", "install", "--quiet", "--disable-pip-version-check", requirement], folder)
        (folder / "done").touch()
    return folder, installed(registry, package, folder)


def call(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def installed(registry, package, folder):
    if registry == "npm":
        return json.loads((folder / "node_modules" / package / "package.json").read_text())["version"]
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([folder / "bin/python", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def run(folder, prompts):
    """What the test saw of each agent, and whether all passed."""
    environment = {**os.environ, "LANNER_AGENTS": str(folder)}
    if prompts:
        prompts.mkdir(parents=True, exist_ok=True)
        environment["LANNER_AGENT_PROMPTS"] = str(prompts.resolve())
    # The packages of the test command: for one package alone, others would be compiled again.
    command = ["cargo", "test", "--workspace", "--test", "cli", "--", "agents::", "--nocapture"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    rows = {}
    for line in done.stdout.splitlines():
        # A test of its own prints whether the picture was seen.
        if line.startswith("agent: "):
            row = json.loads(line.removeprefix("agent: "))
            rows.setdefault(row["agent"], {}).update(row)
    return list(rows.values()), done.returncode == 0


def write_docs(rows, versions):
    lines = ["| agent | package | requests | first prompt | seconds | reads a picture |", "|---|---|---|---|---|---|"]
    for row in rows:
        name = row["agent"]
        kilobytes = f"{row['first_prompt_bytes'] / 1000:.0f} KB"
        lines.append(
            f"| {name} | {AGENTS[name][1]} {versions[name]} | {row['requests']} | {kilobytes} | {row['seconds']} | "
            f"{'yes' if row.get('picture') else 'not tried'} |"
        )
    before, rest = DOCS.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    DOCS.write_text(before + MARKS[0] + "\n".join(lines) + "\n" + MARKS[1] + after)


if __name__ == "__main__":
    main()
