#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests.
#   tools/test.sh          all tests except the exhaustive ones (tests/exhaustive.cmake)
#   tools/test.sh --all [MINUTES]
#       every test, then the sanitizers (tools/sanitize.sh) and the parsers on mutated texts (tools/fuzz.sh): continuous
#       integration, and before a change of what they cover. Parts that would not end within so many minutes are left
#       out and named at the end.
# Each part ends with a summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

all=false minutes=
if [[ ${1:-} == --all && $# -le 2 && ${2:-1} =~ ^[1-9][0-9]*$ ]]; then
  all=true minutes=${2:-}
elif [[ $# -gt 0 ]]; then
  echo "usage: tools/test.sh [--all [MINUTES]]" >&2
  exit 2
fi

# The preset prints the output of failed tests and counts an empty suite as an error. Many tests start several ranks as
# threads, so two at a time keep a small machine busy. One more fills the time that some of them only wait.
at_once=-j$(($(nproc) + 1))
# Tests write thousands of small files, a sixth of their time on a disk: they go to memory where it has room for them.
if [[ -z ${TMPDIR:-} && -w /dev/shm ]] && (($(df --output=avail -k /dev/shm | tail -n 1) > 4 << 20)); then
  TMPDIR=$(mktemp -d /dev/shm/weft-tests-XXXXXX)
  export TMPDIR
  trap 'rm -rf "$TMPDIR"' EXIT
fi
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
  ctest --preset release "$at_once" -LE exhaustive
  exit
fi
tools/install-packages.sh build test fuzz
tools/build.sh
# Tests of a GPU are compiled where there is none too, or the first machine with one finds what no longer compiles.
if ninja -C build -t query test_cuda >/dev/null 2>&1; then tools/build.sh test_cuda; fi
begin=$SECONDS
ctest --preset release "$at_once" -LE exhaustive
unit=$((SECONDS - begin + 1))
left_out=()
# part NAME PERCENT COMMAND...: a part that takes PERCENT as long as the tests above.
part() {
  if [[ -n $minutes ]] && ((SECONDS + $2 * unit / 100 > minutes * 60)); then
    left_out+=("$1")
    return
  fi
  "${@:3}"
}
part "exhaustive tests" 325 ctest --preset release "$at_once" -L exhaustive
part "sanitizers of parsers and ranks" 200 tools/sanitize.sh asan-ubsan
part fuzzers 205 tools/fuzz.sh 10000x
part "thread sanitizer" 110 tools/sanitize.sh tsan
part "sanitizers of commands" 250 tools/sanitize.sh asan-ubsan-tools
if [[ ${#left_out[@]} -gt 0 ]]; then
  printf 'test: no time was left for: %s\n' "${left_out[@]}"
fi
