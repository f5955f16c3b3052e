#!/usr/bin/env bash
# Weft against PyTorch on the CPU, on the model of configs/bench_cpu.toml, in float32 and bfloat16.
#   tools/bench_compare.sh [ROUNDS]
# tools/compare/step.sh does it, and says what it wants.
set -euo pipefail
[[ ${1-5} =~ ^[1-9][0-9]{0,8}$ ]] || { echo "usage: tools/bench_compare.sh [ROUNDS]" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/build.sh weft
[[ -s data/gcide.txt ]] || { echo "bench_compare.sh: data/gcide.txt is missing; tools/quickstart.sh makes it" >&2; exit 1; }
for compute in float32 bfloat16; do
  tools/compare/step.sh configs/bench_cpu.toml "${1:-5}" --steps 15 "--precision.compute=$compute"
done
