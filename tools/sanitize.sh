#!/usr/bin/env bash
# Tests under sanitizers, each in a tree of its own. They look at what reads texts and files, and at ranks that
# communicate, train and save; all tests would take hours.
#   tools/sanitize.sh [asan-ubsan] [asan-ubsan-tools] [tsan]      without arguments: all three
# asan-ubsan-tools looks at the program by its commands. The compiler is clang, which takes half of g++'s time for this
# (tools/install-packages.sh fuzz); WEFT_CLANG names another one than Debian's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $# -gt 0 ]] || set -- asan-ubsan asan-ubsan-tools tsan

clang=${WEFT_CLANG:-clang++-19}
if ! command -v "$clang" >/dev/null; then
  echo "sanitize: FAILED: $clang is missing; tools/install-packages.sh fuzz installs it" >&2
  exit 1
fi
launcher=
if command -v ccache >/dev/null; then launcher=ccache; fi
for part in "$@"; do
  sanitizer=$part
  case "$part" in
    asan-ubsan-tools)
      # Without what measures times or memory, kills for minutes, stands in for a profiler and leaks as one does, or reads
      # sources and documents. UBSan needs descriptors to look at memory, so no test takes them all.
      sanitizer=asan-ubsan tree=build-asan targets=(test_tools) trials=1
      tests=(-L '^tools$' --timeout 60 -E 'Killed|Bench|Hostile|HuggingFaceRun|Sweep|Profile|Nvtx|Damaged|Signalled'\
'|PlanSearch|Descriptors|DocsTables|Certainty|Floors|GpuScript|Words|Document|Requirement|AClustersFileFits|EightRanks') ;;
    asan-ubsan)
      tree=build-asan targets=(sanitized_parsers sanitized_ranks) trials=12
      tests=(-L sanitized -E 'Layouts/MaskedDocuments\..*/[^c]') ;;  # of runs over documents, those of context parallelism
    tsan)
      tree=build-tsan targets=(sanitized_ranks) trials=12
      tests=(-L sanitized_ranks) ;;
    *) echo "sanitize.sh: there is no '$part'; there are asan-ubsan, tsan and asan-ubsan-tools" >&2; exit 2 ;;
  esac
  begin=$SECONDS
  cmake --preset "$sanitizer" --log-level=NOTICE "-DCMAKE_CXX_COMPILER=$clang" \
    "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher" -DWEFT_CUDA=OFF
  cmake --build --preset "$sanitizer" --target "${targets[@]}"
  built=$((SECONDS - begin))

  # Reports go to files, so that those of programs with an ignored exit code count too.
  reports=$PWD/$tree/reports
  rm -rf "$reports"
  mkdir -p "$reports"
  # addr2line comes with every compiler; clang's own tool need not be there, or be of another version.
  common=halt_on_error=1:exitcode=99:log_path=$reports/report:external_symbolizer_path=$(command -v addr2line)
  failed=0
  ASAN_OPTIONS=$common:detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=$common:print_stacktrace=1 \
    TSAN_OPTIONS=$common:suppressions=$PWD/tests/thread_sanitizer.suppressions WEFT_TRIALS=$trials \
    ctest --preset "$sanitizer" -j2 "${tests[@]}" || failed=1
  for report in "$reports"/*; do
    [[ -e $report ]] || continue
    failed=1
    cat "$report"
  done
  if [[ $failed -ne 0 ]]; then
    echo "sanitize: FAILED: $part" >&2
    exit 1
  fi
  echo "sanitize: $part found nothing; $built s to build, $((SECONDS - begin - built)) s to test"
done
