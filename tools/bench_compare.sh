#!/usr/bin/env bash
# Weft against PyTorch on the model of configs/bench_cpu.toml, run in turn so that both see the same machine. Prints tokens a
# second of each round and the ratio of the medians, in float32 and bfloat16.
#   tools/bench_compare.sh [ROUNDS]
# Wants Debian's python3-torch and libopenblas0-openmp: with that BLAS PyTorch is fastest on two cores (its default,
# pthreads, spins against OpenMP's threads).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5}

tools/build.sh weft
[[ -s data/gcide.txt ]] || { echo "bench_compare.sh: data/gcide.txt is missing; tools/quickstart.sh makes it" >&2; exit 1; }
python=/usr/bin/python3
"$python" -c 'import torch' 2>/dev/null || { echo "bench_compare.sh: install python3-torch and libopenblas0-openmp" >&2; exit 1; }

weft() {
  build/weft bench step --config configs/bench_cpu.toml --precision.compute="$1" --warmup 3 --steps 15 --json |
    "$python" -c 'import json, sys; print(round(json.load(sys.stdin)["tokens_per_second"]))'
}
pytorch() {
  LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp "$python" tools/bench_pytorch.py --compute "$1"
}
median() { sort -n | sed -n "$(((rounds + 1) / 2))p"; }

for compute in float32 bfloat16; do
  ours=() theirs=()
  for ((round = 1; round <= rounds; ++round)); do
    ours+=("$(weft "$compute")")
    theirs+=("$(pytorch "$compute")")
    echo "$compute round $round: weft ${ours[-1]} tok/s, pytorch ${theirs[-1]} tok/s"
  done
  a=$(printf '%s\n' "${ours[@]}" | median)
  b=$(printf '%s\n' "${theirs[@]}" | median)
  awk -v a="$a" -v b="$b" -v c="$compute" 'BEGIN { printf "%s: weft %d, pytorch %d tok/s (medians): %.2f times\n", c, a, b, a / b }'
done
