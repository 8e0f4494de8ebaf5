#!/usr/bin/env bash
# Checks and tests the web page: types, whether the committed files are current, Markdown, and the page
# in headless Chromium against a server with the built-in model.
#
#     tools/page.sh [path/to/lanner]     default: builds the release
#
# Needs Node 20 and npm; installs the front end's packages into web/node_modules, and Debian's chromium
# if there is none. SHOTS names a folder for screenshots.
set -euo pipefail
cd "$(dirname "$0")/.."

lanner=${1:-}
if [ -z "$lanner" ]; then
    cargo build --release
    lanner=target/release/lanner
fi
lanner=$(realpath "$lanner")
[ -z "${SHOTS:-}" ] || SHOTS=$(mkdir -p "$SHOTS" && realpath "$SHOTS")

if ! command -v chromium >/dev/null && [ -z "${CHROMIUM:-}" ]; then
    apt-get update -qq && apt-get install -y -qq chromium
fi
cd web
npm ci --no-audit --no-fund --silent
npm run --silent check
npm run --silent stale
LANNER=$lanner SHOTS=${SHOTS:-} node --test --test-concurrency=1 tests/
