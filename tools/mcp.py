"""Runs MCP servers from packages against Lanner with a scripted model, and prints what they answered.

    python3 tools/mcp.py

Installs the packages into folders of their own under LANNER_MCP_CACHE (default:
~/.cache/lanner/mcp), once for each version, starts those that speak HTTP, and runs the test
`mcp::real` of the package lanner: each server lists its tools and makes one call. Exits with 1 if
one failed.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
CACHE = pathlib.Path(os.environ.get("LANNER_MCP_CACHE") or pathlib.Path.home() / ".cache/lanner/mcp")
INSTALL_SECONDS = 900
START_SECONDS = 60

# Installed packages, and their registries.
PACKAGES = {
    "everything": ("npm", "@modelcontextprotocol/server-everything"),
    "filesystem": ("npm", "@modelcontextprotocol/server-filesystem"),
    "time": ("pip", "mcp-server-time"),
}

# A server of the Python SDK over HTTP; the package of `time` brings the SDK.
PYTHON_HTTP = """
import sys
try:
    from mcp.server.fastmcp import FastMCP as Server
    server = Server("adder", host="127.0.0.1", port=int(sys.argv[1]))
    run = lambda: server.run(transport="streamable-http")
except ImportError:
    from mcp.server import MCPServer as Server
    server = Server("adder")
    run = lambda: server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))

@server.tool()
def add(a: int, b: int) -> str:
    "Adds two numbers."
    return f"the sum is {a + b}"

run()
"""


def main():
    folders = {name: install(name, *package) for name, package in PACKAGES.items()}
    processes = []
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work).resolve()
        (work / "owl.txt").write_text("owls hunt at night")
        try:
            cases = stdio(folders, work) + http(folders, work, processes)
            file = work / "cases.json"
            file.write_text(json.dumps(cases))
            environment = {**os.environ, "LANNER_MCP_SERVERS": str(file)}
            command = ["cargo", "test", "--workspace", "--test", "cli", "--", "mcp::real", "--nocapture"]
            code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        finally:
            for process in processes:
                process.terminate()
    sys.exit(code)


def stdio(folders, work):
    node = lambda name, script, *args: {"command": "node", "args": [str(folders[name] / "node_modules" / script), *args]}
    everything = node("everything", "@modelcontextprotocol/server-everything/dist/index.js")
    filesystem = node("filesystem", "@modelcontextprotocol/server-filesystem/dist/index.js", str(work))
    clock = {"command": str(folders["time"] / "bin/mcp-server-time"), "args": ["--local-timezone", "UTC"]}
    return [
        case("everything over stdio", everything, "echo", {"message": "owls"}, "owls"),
        case("filesystem over stdio", filesystem, "read_text_file", {"path": str(work / "owl.txt")}, "owls hunt"),
        case("time over stdio", clock, "get_current_time", {"timezone": "UTC"}, "UTC"),
    ]


def http(folders, work, processes):
    everything, adder = free_port(), free_port()
    script = folders["everything"] / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    start(processes, ["node", str(script), "streamableHttp"], everything, {"PORT": str(everything)})
    (work / "adder.py").write_text(PYTHON_HTTP)
    start(processes, [str(folders["time"] / "bin/python"), str(work / "adder.py"), str(adder)], adder, {})
    url = lambda port: {"url": f"http://127.0.0.1:{port}/mcp"}
    return [
        case("everything over HTTP", url(everything), "echo", {"message": "owls"}, "owls"),
        case("Python SDK over HTTP", url(adder), "add", {"a": 2, "b": 3}, "the sum is 5"),
    ]


def case(name, server, tool, arguments, expects):
    return {"name": name, "server": server, "tool": tool, "arguments": arguments, "expects": expects}


def start(processes, command, port, variables):
    log = open(CACHE / f"{port}.log", "w")
    environment = {**os.environ, **variables}
    processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit(f"{' '.join(command)} does not listen:\n{pathlib.Path(log.name).read_text()}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def install(name, registry, package):
    folder = CACHE / name
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"installing {package}", file=sys.stderr)
        if registry == "npm":
            (folder / "package.json").write_text("{}")
            call(["npm", "install", "--loglevel=error", "--no-audit", "--no-fund", package], folder)
        else:
            call([sys.executable, "-m", "venv", "."], folder)
            call(["bin/pip", "install", "--quiet", "--disable-pip-version-check", package], folder)
        (folder / "done").touch()
    return folder


def call(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
