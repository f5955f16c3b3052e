#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the whole test suite, then what runs under sanitizers
# (tools/sanitize.sh) and the parsers on mutated texts (tools/fuzz.sh). Each part ends with a summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install-packages.sh build test fuzz
tools/build.sh
# Tests of a GPU are compiled where there is none too, or the first machine with one finds what no longer compiles.
if ninja -C build -t query test_cuda >/dev/null 2>&1; then tools/build.sh test_cuda; fi
# The preset prints the output of failed tests and counts an empty suite as an error. Many tests start several ranks as
# threads, so two at a time keep a small machine busy.
ctest --preset release -j2
tools/sanitize.sh
tools/fuzz.sh 10000x
