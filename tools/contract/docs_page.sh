#!/usr/bin/env bash
# Opens /docs of a server with the built-in model in a headless Chromium without a network, and checks
# that all of it is there and that the console has no error.
#
#     tools/contract/docs_page.sh path/to/lanner
set -euo pipefail

lanner=$(realpath "$1")
out=$(mktemp -d)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
HF_HUB_OFFLINE=1 "$lanner" serve --port "$port" --disk-cache off --no-store 2>"$out/server.log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$out"' EXIT
for _ in $(seq 240); do
    if curl -sf "$url/openapi.json" >"$out/openapi.json"; then break; fi
    sleep 0.5
done

# Every other host is behind a proxy that does not exist.
timeout 120 "${CHROMIUM:-chromium}" --headless=new --no-sandbox --disable-gpu --user-data-dir="$out/profile" \
    --proxy-server=http://127.0.0.1:9 --proxy-bypass-list=127.0.0.1 --enable-logging=stderr --v=0 \
    --virtual-time-budget=10000 --dump-dom "$url/docs" >"$out/page.html" 2>"$out/browser.log"

# `INFO` of the browser's log is the level of messages, which errors in the page have too.
if grep "CONSOLE" "$out/browser.log" | grep -v "Password field is not contained in a form"; then
    echo "the console of $url/docs has messages" >&2
    exit 1
fi
python3 - "$out" <<'END'
import json
import pathlib
import sys

out = pathlib.Path(sys.argv[1])
document = json.loads((out / "openapi.json").read_text())
expected = sum(len(methods) for methods in document["paths"].values()) + len(document["components"]["schemas"])
found = (out / "page.html").read_text().count("<section")
print(f"{found} sections for {expected} operations and types")
sys.exit(found != expected)
END
