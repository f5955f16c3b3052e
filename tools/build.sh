#!/usr/bin/env bash
# Configures and builds the release tree in build/.
#   tools/build.sh [TARGET...]      without arguments: everything, tests included
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

options=()
if [[ $# -eq 0 ]]; then
  options+=(-DWEFT_BUILD_TESTS=ON)
elif [[ ! -e build/build.ninja ]]; then
  # Whoever asks a fresh checkout for single targets need not have the test framework. A tree that is configured
  # already keeps its tests.
  options+=(-DWEFT_BUILD_TESTS=OFF)
fi
launcher=
if command -v ccache >/dev/null; then launcher=ccache; fi
options+=("-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher")

cmake --preset release --log-level=WARNING "${options[@]}"
if [[ $# -eq 0 ]]; then
  cmake --build --preset release
else
  cmake --build --preset release --target "$@"
fi
