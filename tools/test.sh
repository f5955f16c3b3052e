#!/usr/bin/env bash
# Installs what is missing, builds everything and runs the whole test suite.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install-packages.sh build test data
tools/build.sh
ctest --test-dir build --output-on-failure --no-tests=error -j2 "$@"
