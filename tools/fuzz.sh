#!/usr/bin/env bash
# Feeds mutated texts to every parser (tests/fuzz/parsers.cpp) until the time is up. Fails on a finding, and names the file
# that brings it about.
#   tools/fuzz.sh [SECONDS] [PARSER...]      60 in all, and every parser, unless given
# Begins with the kept texts of tests/fuzz/corpus and those that earlier calls left in build-fuzz/corpus. A text that was
# a finding is run again by
#   WEFT_FUZZ=PARSER build-fuzz/fuzz FILE
# Wants clang (tools/install-packages.sh fuzz); WEFT_CLANG names another one than Debian's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
[[ $# -eq 0 ]] || shift
clang=${WEFT_CLANG:-clang++-19}
tree=build-fuzz
begin=$SECONDS

if ! command -v "$clang" >/dev/null; then
  echo "fuzz: FAILED: $clang is missing; tools/install-packages.sh fuzz installs it" >&2
  exit 1
fi
cmake -S tests/fuzz -B "$tree" -G Ninja --log-level=NOTICE "-DCMAKE_CXX_COMPILER=$clang"
cmake --build "$tree"
built=$((SECONDS - begin))

parsers=("$@")
if [[ $# -eq 0 ]]; then read -r -a parsers < <("$tree/fuzz" 2>&1 || true); fi
each=$((seconds / ${#parsers[@]}))
[[ $each -gt 0 ]] || each=1
mkdir -p "$tree/findings"
export ASAN_OPTIONS=allow_addr2line=1:malloc_context_size=4  # places in reports without LLVM; speed
total=0
for parser in "${parsers[@]}"; do
  scratch=$tree/corpus/$parser log=$tree/$parser.log
  mkdir -p "$scratch"
  if ! WEFT_FUZZ=$parser "$tree/fuzz" -max_total_time="$each" -timeout=20 -rss_limit_mb=2048 -max_len=16384 \
    -print_final_stats=1 -artifact_prefix="$tree/findings/$parser-" "$scratch" "tests/fuzz/corpus/$parser" \
    >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "fuzz: FAILED: $parser; again with" \
      "WEFT_FUZZ=$parser $tree/fuzz $(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)" >&2
    exit 1
  fi
  texts=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "fuzz: $parser $texts texts"
  total=$((total + texts))
done
echo "fuzz: ${#parsers[@]} parsers took $total texts and nothing was found;" \
  "$built s to build, $((SECONDS - begin - built)) s to run"
