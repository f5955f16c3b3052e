#!/usr/bin/env bash
# Runs what docs/requirements.md names for a requirement, from the build in build/ or $BUILD:
#   tools/requirement.sh S2-04          runs it; fails if it fails, is not built, or is no test
#   tools/requirement.sh --list S2-04   prints its commands, a line each; a pattern of grep takes more rows than one
# The folder of a test's source names its program; tests/cuda runs on the emulator. A filter has both forms of a name:
# a test with parameters is called Layouts/LayoutParity.EqualsOneRank/one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${BUILD:-build}
run=yes
if [ "${1:-}" = --list ]; then
  run=
  shift
fi

# The command of a test, or of a line of the program.
command_of() {
  local file folder
  if [[ $1 == 'weft '* ]]; then
    echo "$build/$1"
    return
  fi
  if ! file=$(grep -rlE --include='*.cpp' "^TEST(_F|_P)?\(${1%.*}, ${1#*.}\)" tests); then
    echo "$1 is no test of tests/" >&2
    return 1
  fi
  folder=$(cut -d/ -f2 <<<"$file")
  [ "$folder" != cuda ] || folder=cuda_emulated
  echo "$build/test_$folder --gtest_filter=$1:*/$1/*"
}

if [ $# -ne 1 ] || ! row=$(grep "^| $1 |" docs/requirements.md); then
  echo "usage: tools/requirement.sh [--list] NUMBER, such as S2-04 of docs/requirements.md" >&2
  exit 2
fi
if ! names=$(cut -d'|' -f4 <<<"$row" | grep -oE '`[^`]+`'); then
  echo "$1 names no test: it is missing" >&2
  exit 1
fi
while read -r name; do
  command=$(command_of "${name//\`/}")
  echo "$command"
  [ -n "$run" ] || continue
  read -ra words <<<"$command"
  if [ ! -x "${words[0]}" ]; then
    echo "${words[0]} is not built: tools/build.sh" >&2
    exit 1
  fi
  if [[ ${words[0]} == */test_* && $("${words[@]}" --gtest_list_tests) != *$'\n  '* ]]; then
    echo "${words[0]} is older than the test" >&2
    exit 1
  fi
  "${words[@]}" </dev/null
done <<<"$names"
