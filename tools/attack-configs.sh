#!/usr/bin/env bash
# Has commands read nonsensical configurations, 10,000 or as many as asked, and holds each to 5 s and 2 GiB.
#   tools/attack-configs.sh [configurations] [seed]      after tools/build.sh
set -euo pipefail
if [[ $# -gt 2 || ! "${1-10000} ${2-7}" =~ ^[1-9][0-9]{0,8}\ (0|[1-9][0-9]{0,8})$ ]]; then
  echo "usage: tools/attack-configs.sh [CONFIGURATIONS] [SEED], as 10000 7" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="${WEFT_BUILD:-build}"
if [[ ! -x $build/test_tools ]]; then
  echo "attack-configs.sh: $build/test_tools is not there: build with tools/test.sh first" >&2
  exit 2
fi
WEFT_MUTATIONS="${1:-10000}" WEFT_SEED="${2:-7}" "$build/test_tools" --gtest_filter='HostileConfigs.*'
