#!/bin/sh
# Builds the measurement of a prompt's kernels besides products, against those of an earlier commit.
# Usage: sh crates/kernels/cuda/bench/prompt.sh COMMIT OUT; then run OUT on a machine with a Hopper GPU.
set -e
cd "$(dirname "$0")"
build=$(mktemp -d)
for file in quantize.cu attention_many.cu delta_inputs.cu delta.cu common.cuh math.cuh quantize.cuh attention.cuh delta.cuh; do
    git show "$1:./../$file" >"$build/$file"
done
cp prompt_old.cu "$build/old.cu"
flags="-std=c++17 -O3 --fmad=false --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -diag-suppress 1556"
nvcc $flags -c "$build/old.cu" -o "$build/old.o" >"$build/old.log" 2>&1 || { cat "$build/old.log"; exit 1; }
nvcc $flags -c prompt.cu -o "$build/new.o" >"$build/new.log" 2>&1 || { cat "$build/new.log"; exit 1; }
grep -h -E "error|warning|[1-9][0-9]* bytes (stack|spill)" "$build"/*.log || true
nvcc -gencode=arch=compute_90a,code=sm_90a -cudart static "$build"/*.o -o "$2"
rm -r "$build"
