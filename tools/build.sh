#!/usr/bin/env bash
# Configures and builds the release tree in build/.
#   tools/build.sh [TARGET...]      without arguments: everything, tests included
# The CUDA backend is part of it where a toolkit, cuDNN and NCCL are found. Two environment variables say otherwise:
#   WEFT_CUDA=AUTO|ON|OFF|EMULATED
#   WEFT_CUDA_ARCHITECTURES         GPUs to compile for, "90-real" unless given; CMakeLists.txt alone takes more
set -euo pipefail
[[ " $*" != *" -"* ]] || { echo "usage: tools/build.sh [TARGET...]" >&2; exit 2; }
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
options+=("-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher")  # nvcc's too
options+=("-DWEFT_CUDA=${WEFT_CUDA:-AUTO}" "-DWEFT_CUDA_ARCHITECTURES=${WEFT_CUDA_ARCHITECTURES:-90-real}")

# One notice says whether CUDA is built and for what, or what it lacks.
cmake --preset release --log-level=NOTICE "${options[@]}"
if [[ $# -eq 0 ]]; then
  cmake --build --preset release
else
  cmake --build --preset release --target "$@"
fi
