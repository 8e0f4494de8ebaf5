#!/usr/bin/env bash
# Builds the release, serves the built-in model on a free port and talks to it with OpenAI's Python client.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release

log=$(mktemp)
target/release/lanner serve --port 0 --no-store 2>"$log" &
server=$!
trap 'kill $server 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 100); do
    url=$(grep -oE 'http://[0-9.:]+/v1' "$log" | head -n 1 || true)
    [ -n "$url" ] && break
    sleep 0.1
done
[ -n "$url" ] || { echo "the server did not get ready:"; cat "$log"; exit 1; }
cat "$log"

venv=$(mktemp -d)
python3 -m venv "$venv" && "$venv/bin/pip" install -q openai
"$venv/bin/python" tools/openai_smoke.py --base-url "$url"
rm -rf "$venv"

kill -INT $server
wait $server
echo "the server ended cleanly"
