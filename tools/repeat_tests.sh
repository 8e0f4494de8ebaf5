#!/usr/bin/env bash
# Checks that tests do not depend on the machine's speed or load: runs the memory limit test and the
# whole suite repeatedly, the last two suites beside busy processes. Arguments: the numbers of runs (200
# and 5). The variable SUITE replaces `cargo test` as the command of a suite: with it, and 0 as the first
# argument, no cargo is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

limits=${1:-200} suites=${2:-5} busy=4 suite=${SUITE:-cargo test --workspace --no-fail-fast}
load=() said=$(mktemp)
trap 'for pid in "${load[@]}"; do kill "$pid" 2>/dev/null || true; done; rm -f "$said"' EXIT

[ -n "${SUITE:-}" ] || cargo test --workspace --no-run
limit=
[ "$limits" -eq 0 ] ||
    limit=$(cargo test --workspace --test memory_limit --no-run 2>&1 | sed -n 's/.*memory_limit.rs (\(.*\))$/\1/p')
echo "== the memory limit, $limits times, half of them beside $busy busy processes"
begin_load() {
    for _ in $(seq "$busy"); do
        while :; do :; done &
        load+=($!)
    done
}
end_load() {
    for pid in "${load[@]}"; do kill "$pid" && wait "$pid" 2>/dev/null || true; done
    load=()
}
failed=0
for i in $(seq "$limits"); do
    [ "$i" -eq $((limits / 2 + 1)) ] && begin_load
    (cd crates/engine && "../../$limit" --nocapture) >"$said" 2>&1 || {
        failed=$((failed + 1))
        cat "$said"
    }
done
[ "${#load[@]}" -gt 0 ] && end_load

for i in $(seq "$suites"); do
    [ "$i" -eq $((suites - 1)) ] && begin_load
    echo "== the suite, $i of $suites, beside ${#load[@]} busy processes"
    $suite || failed=$((failed + 1))
done
echo "$failed runs failed"
[ "$failed" -eq 0 ]
