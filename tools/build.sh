#!/usr/bin/env bash
# Configures and builds a release in build/. Arguments are targets (default: everything).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake --preset release "${launcher[@]}" >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
rm -f build-configure.log
if [ $# -gt 0 ]; then
  cmake --build build --target "$@"
else
  cmake --build build
fi
