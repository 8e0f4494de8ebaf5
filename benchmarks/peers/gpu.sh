#!/usr/bin/env bash
# Measures Lanner beside llama.cpp on an NVIDIA GPU, in turns, with random weights of the same shapes.
#
#     benchmarks/peers/gpu.sh LANNER LLAMA_BENCH [ROUNDS]
#
# LANNER and LLAMA_BENCH are programs; llama.cpp is built with -DGGML_CUDA=ON for the GPU at hand. Files of
# weights go to $TMPDIR, or to the folder $WEIGHTS, where they stay and are used again. Prints both programs'
# own tables.
set -euo pipefail
lanner=$(realpath "$1") llama=$(realpath "$2") rounds=${3:-2}
here=$(cd "$(dirname "$0")" && pwd)
folder=${WEIGHTS:-$(mktemp -d)}
[ -n "${WEIGHTS:-}" ] || trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"
shapes=(qwen3.5-9b llama-8b qwen3.5-0.8b)

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for shape in "${shapes[@]}"; do
    [ -f "$folder/$shape.gguf" ] && continue
    # Half a file must not be used again.
    python3 "$here/write_gguf.py" "$shape" "$folder/$shape.part" >/dev/null
    mv "$folder/$shape.part" "$folder/$shape.gguf"
done
for _ in $(seq "$rounds"); do
    for shape in "${shapes[@]}"; do
        "$lanner" bench --device gpu --shape "$shape" --prompt 512,2048 --generate 128 --batch 1 --repeats 3 2>/dev/null
        "$llama" -m "$folder/$shape.gguf" -ngl 99 -fa 1 -p 512,2048 -n 128 -r 3 2>/dev/null
    done
done
"$lanner" bench --device gpu --shape qwen3.5-9b --prompt 8192 --generate 64 --batch 1 --repeats 2 2>/dev/null
"$llama" -m "$folder/qwen3.5-9b.gguf" -ngl 99 -fa 1 -p 0 -n 64 -d 8192 -r 2 2>/dev/null
