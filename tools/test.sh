#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the whole test suite. Ends with ctest's summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install-packages.sh build test
tools/build.sh
# The preset prints the output of failed tests and counts an empty suite as an error. Many tests start several ranks as
# threads, so two at a time keep a small machine busy.
exec ctest --preset release -j2
