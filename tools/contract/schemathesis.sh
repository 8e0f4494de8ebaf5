#!/usr/bin/env bash
# Runs schemathesis over /openapi.json of a server with the built-in model.
#
#     tools/contract/schemathesis.sh path/to/lanner [EXAMPLES] [SECONDS] [SEED]
#
# EXAMPLES per operation (default 100) within SECONDS (default 600). A 5xx that the document does not
# name, a status or a media type that it does not name, and an answer of another shape end the run
# with 1. Nothing is downloaded but schemathesis itself, into a virtual environment (VENV).
set -euo pipefail

lanner=$(realpath "$1")
examples=${2:-100} seconds=${3:-600} seed=${4:-1}
here=$(dirname "$(realpath "$0")")
venv=${VENV:-${TMPDIR:-/tmp}/lanner-schemathesis}
out=${OUT:-$(mktemp -d)}

if [ ! -x "$venv/bin/schemathesis" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet 'schemathesis==4.32.5'
fi

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
HF_HUB_OFFLINE=1 HF_HUB_CACHE=$out/hub "$lanner" serve --port "$port" --disk-cache off --log warn --store "$out/store.db" \
    2>"$out/server.log" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT

cd "$out"
status=0
# A mutated request may happen to be valid and a generated one may ask for what this model lacks:
# the checks that guess this from the schema are off.
SCHEMATHESIS_HOOKS=schemathesis_hooks PYTHONPATH=$here "$venv/bin/schemathesis" \
    --config-file "$here/schemathesis.toml" run \
    "http://127.0.0.1:$port/openapi.json" --wait-for-schema 120 --seed "$seed" --workers 1 \
    --max-examples "$examples" --max-time "$seconds" --request-timeout 60 --continue-on-failure \
    --phases examples,coverage,fuzzing,stateful --warnings off --generation-database none \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method \
    || status=$?

kill -0 "$server" || { echo "the server has ended; its log is $out/server.log" >&2; exit 1; }
curl --silent --show-error --fail "http://127.0.0.1:$port/health"
echo
exit "$status"
