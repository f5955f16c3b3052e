#!/usr/bin/env bash
# Kills a run with SIGKILL at random moments, 200 times or as often as asked, and compares its end with that of an
# undisturbed run.
#   tools/kill-trial.sh [kills]      after tools/build.sh
set -euo pipefail
if [[ $# -gt 1 || ! ${1-200} =~ ^[1-9][0-9]{0,8}$ ]]; then
  echo "usage: tools/kill-trial.sh [KILLS], as 200" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="${WEFT_BUILD:-build}"
if [[ ! -x $build/test_tools ]]; then
  echo "kill-trial.sh: $build/test_tools is not there: build with tools/test.sh first" >&2
  exit 2
fi
WEFT_KILLS="${1:-200}" "$build/test_tools" --gtest_filter='KilledRun.*'
