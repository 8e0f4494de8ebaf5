#!/bin/sh
# Builds and runs the measurement of products of many rows, with `few` of up to 64 rows, with `experts` of mixtures of
# experts, on a machine with nvcc and a Hopper GPU.
# Usage: sh crates/kernels/cuda/bench/run.sh [bits | few | experts]
set -e
cd "$(dirname "$0")"
build=$(mktemp -d)
flags="-std=c++17 -O3 --fmad=false --expt-relaxed-constexpr -gencode=arch=compute_90a,code=sm_90a -Xcompiler -mfma,-ffp-contract=off -Xptxas -v"
if [ "$1" = experts ]; then
    nvcc $flags experts.cu -o "$build/experts" >"$build/experts.log" 2>&1 || cat "$build/experts.log"
    exec timeout 120 "$build/experts"
fi
if [ "$1" = few ]; then
    for set in 0 1 2 3 4 5; do
        nvcc $flags -DSET=$set -c few_part.cu -o "$build/part$set.o" >"$build/part$set.log" 2>&1 &
    done
    nvcc $flags -c few.cu -o "$build/few.o" >"$build/few.log" 2>&1 &
    wait
    grep -h -i -E "error|warning|serializ|[1-9][0-9]* bytes (stack|spill)" "$build"/*.log || true
    nvcc -gencode=arch=compute_90a,code=sm_90a "$build"/*.o -o "$build/few"
    exec timeout 240 "$build/few"
fi
for set in 0 1 2 3 5 6 7 8 9 10 11; do
    nvcc $flags -DSET=$set -c part.cu -o "$build/part$set.o" >"$build/part$set.log" 2>&1 &
done
nvcc $flags -c micro.cu -o "$build/micro.o" >"$build/micro.log" 2>&1 &
nvcc $flags -c bench.cu -o "$build/bench.o" >"$build/bench.log" 2>&1 &
wait
grep -h -i -E "error|warning|serializ|[1-9][0-9]* bytes (stack|spill)" "$build"/*.log || true
nvcc -gencode=arch=compute_90a,code=sm_90a "$build"/*.o -o "$build/bench"
# A kernel that waits for ever would keep the machine.
timeout 240 "$build/bench" "$@"
