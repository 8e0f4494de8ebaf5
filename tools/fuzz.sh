#!/usr/bin/env bash
# Fuzzes the parsers of untrusted input: the targets in fuzz/, with their committed seeds.
#
#   tools/fuzz.sh build                            builds all targets with stable Rust into fuzz/dist
#   tools/fuzz.sh run SECONDS [JOBS [TARGET...]]   runs each target for SECONDS, JOBS processes at once
#
# fuzz/dist runs on any machine of the same platform. FUZZ_OUT is the output folder (default: fuzz):
# corpus/TARGET grows from run to run, artifacts/ holds failing inputs and logs.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(safetensors_header safetensors_index config_json tokenizer_json template disk_state http_request image)
dist=fuzz/dist

build() {
    local triple coverage
    triple=$(rustc -vV | sed -n 's/^host: //p')
    coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
        -Cllvm-args=-sanitizer-coverage-trace-compares"
    # With --target the flags do not apply to build scripts, which do not link libFuzzer.
    RUSTFLAGS=$(echo $coverage) cargo build --release --manifest-path fuzz/Cargo.toml --target "$triple"
    rm -rf "$dist"
    mkdir -p "$dist"
    for target in "${all[@]}"; do
        cp "fuzz/target/$triple/release/$target" "$dist/"
    done
    # libmlx and the libraries that its wheel brings.
    local wheel
    wheel=$(dirname "$(ldd "$dist/config_json" | sed -n 's/.*libmlx.so => \(.*\) (.*/\1/p')")/../..
    cp "$wheel"/mlx/lib/libmlx.so "$wheel"/*.libs/*.so* "$dist/"
    du -sh "$dist"
}

# Runs one process of one target.
one() {
    local target=$1 number=$2 seconds=$3 out=$4 length=8192
    case $target in safetensors_header | tokenizer_json) length=16384 ;; esac
    mkdir -p "$out/corpus/$target" "$out/artifacts/$target"
    LD_LIBRARY_PATH=$dist "$dist/$target" -rss_limit_mb=2048 -timeout=10 -max_len=$length \
        -max_total_time="$seconds" -print_final_stats=1 -dict="fuzz/dicts/$target.dict" \
        -artifact_prefix="$out/artifacts/$target/" \
        "$out/corpus/$target" "fuzz/seeds/$target" >"$out/artifacts/$target.$number.log" 2>&1 ||
        echo "$target failed: see $out/artifacts/$target.$number.log" | tee -a "$out/artifacts/failed.log"
}

run() {
    local seconds=${1:?"seconds are missing"} jobs=${2:-$(nproc)} out=${FUZZ_OUT:-fuzz}
    shift $(($# < 2 ? $# : 2))
    local targets=("$@")
    [ $# -gt 0 ] || targets=("${all[@]}")
    local each=$((jobs / ${#targets[@]})) number target
    mkdir -p "$out/artifacts"
    rm -f "$out"/artifacts/*.log
    export -f one
    export dist
    for target in "${targets[@]}"; do
        for number in $(seq 1 $((each > 1 ? each : 1))); do
            echo "$target $number $seconds $out"
        done
    done | xargs -P "$jobs" -L 1 bash -c 'one "$@"' _
    for target in "${targets[@]}"; do
        local runs inputs
        runs=$(awk '/^stat::number_of_executed_units:/ { all += $2 } END { print all + 0 }' \
            "$out/artifacts/$target".*.log)
        inputs=$(find "$out/corpus/$target" -type f | wc -l)
        echo "$target: $runs inputs tried, $inputs kept"
    done
    local found
    found=$(find "$out/artifacts" -type f \( -name 'crash-*' -o -name 'oom-*' -o -name 'timeout-*' \))
    if [ -n "$found" ]; then
        echo "findings:"
        echo "$found"
    fi
    [ -z "$found" ] && [ ! -e "$out/artifacts/failed.log" ]
}

case ${1:-} in
build) build ;;
run)
    shift
    run "$@"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
