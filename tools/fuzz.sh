#!/usr/bin/env bash
# Feeds mutated texts to every parser (tests/fuzz/parsers.cpp). Fails on a finding, and names the file that brings it
# about.
#   tools/fuzz.sh [SECONDS] [PARSER...]      60 in all, and every parser, unless given
#   tools/fuzz.sh TEXTSx [PARSER...]         so many texts each, from one seed
# Seconds are for a search: new texts in every call, beginning with those of tests/fuzz/corpus and what earlier calls left
# in build-fuzz/corpus. A number of texts is for continuous integration, which shall say of the same tree the same.
# A text that was a finding is run again by
#   WEFT_FUZZ=PARSER build-fuzz/fuzz FILE
# Wants clang (tools/install-packages.sh fuzz); WEFT_CLANG names another one than Debian's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
amount=${1:-60}
[[ $# -eq 0 ]] || shift
if [[ ! $amount =~ ^[1-9][0-9]*x?$ ]]; then
  echo "fuzz.sh: '$amount' is no number of seconds, nor of texts (10000x)" >&2
  exit 2
fi
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
at_once=$(nproc)  # parsers
((at_once <= ${#parsers[@]})) || at_once=${#parsers[@]}
begun=$tree/corpus
if [[ $amount == *x ]]; then
  begun=$tree/corpus-of-this-call
  rm -rf "$begun"
  limit=(-runs="${amount%x}" -seed=1)
else
  each=$((amount * at_once / ${#parsers[@]}))
  limit=(-max_total_time=$((each > 0 ? each : 1)))
fi
mkdir -p "$tree/findings"
ASAN_OPTIONS=external_symbolizer_path=$(command -v addr2line):malloc_context_size=4  # places in reports; speed
export ASAN_OPTIONS
[[ -n ${TMPDIR:-} || ! -w /dev/shm ]] || export TMPDIR=/dev/shm  # parsers of files write each text; on a disk that takes most of the time
feed() {
  local parser=$1 scratch=$begun/$1 log=$tree/$1.log
  mkdir -p "$scratch"
  if ! WEFT_FUZZ=$parser "$tree/fuzz" "${limit[@]}" -timeout=20 -rss_limit_mb=2048 -max_len=16384 -len_control=100 \
    -print_final_stats=1 -artifact_prefix="$tree/findings/$parser-" "$scratch" "tests/fuzz/corpus/$parser" \
    >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "fuzz: FAILED: $parser; again with" \
      "WEFT_FUZZ=$parser $tree/fuzz $(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)" >&2
    return 1
  fi
  echo "fuzz: $parser $(texts_of "$parser") texts"
}
texts_of() { sed -n 's/^stat::number_of_executed_units: *//p' "$tree/$1.log"; }

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
running=0
for parser in "${parsers[@]}"; do
  if ((running == at_once)); then
    wait -n
    running=$((running - 1))
  fi
  feed "$parser" &
  running=$((running + 1))
done
while ((running > 0)); do
  wait -n
  running=$((running - 1))
done
total=0
for parser in "${parsers[@]}"; do total=$((total + $(texts_of "$parser"))); done
echo "fuzz: ${#parsers[@]} parsers took $total texts and nothing was found;" \
  "$built s to build, $((SECONDS - begin - built)) s to run"
