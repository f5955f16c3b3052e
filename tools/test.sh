#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#   tools/test.sh          all tests except the exhaustive ones (tests/exhaustive.cmake)
#   tools/test.sh --all    every test, then the sanitizers (tools/sanitize.sh) and the parsers on mutated texts
#                          (tools/fuzz.sh): continuous integration, and before a change of what they cover
# Each part ends with a summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=false
case "${1:-}" in
  "") ;;
  --all) all=true ;;
  *)
    echo "usage: tools/test.sh [--all]" >&2
    exit 2
    ;;
esac

# The preset prints the output of failed tests and counts an empty suite as an error. Many tests start several ranks as
# threads, so two at a time keep a small machine busy. One more fills the time that some of them only wait.
if ! $all; then
  tools/install-packages.sh build test
  # Without a GPU, kernels are tested on the CPU, and nvcc has nothing to compile that could run. A tree that has the
  # CUDA backend keeps it.
  if ! command -v nvidia-smi >/dev/null; then
    cuda=$(sed -n 's/^WEFT_CUDA:[A-Z]*=//p' build/CMakeCache.txt 2>/dev/null || true)
    export WEFT_CUDA="${WEFT_CUDA:-${cuda/#OFF/EMULATED}}"
    export WEFT_CUDA="${WEFT_CUDA:-EMULATED}"
  fi
  tools/build.sh
  exec ctest --preset release -j$(($(nproc) + 1)) -LE exhaustive
fi
tools/install-packages.sh build test fuzz
tools/build.sh
# Tests of a GPU are compiled where there is none too, or the first machine with one finds what no longer compiles.
if ninja -C build -t query test_cuda >/dev/null 2>&1; then tools/build.sh test_cuda; fi
ctest --preset release -j2
tools/sanitize.sh
tools/fuzz.sh 10000x
