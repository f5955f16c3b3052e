#!/usr/bin/env bash
# Everything that wants a GPU, in one call on a machine that has one: builds for that GPU, tests, checks memory and
# races, measures.
#   tools/gpu.sh OUT [PART...]      parts, all unless named: build test sanitize bench compare
# Writes into the folder OUT: environment.txt, build.txt, tests.txt, memcheck.txt, racecheck.txt, bench_<config>.txt,
# compare_<config>.txt (Weft and PyTorch in turn, tools/compare/step.sh), and summary.txt with a line
# "name seconds exit-code" for each thing run (124: it outlasted its limit). A part that fails does not keep the next from
# running; the exit code is 1 if anything failed. The tree is build-gpu/; a later call that leaves out `build` uses it as
# it is.
# Beside the compiler, CMake and ninja it wants Weft's dependencies, installed or in .deps (tools/vendor-deps.sh), and
# CUDA: a toolkit, and what the toolkit lacks from the wheels of the python3 at hand. `compare` wants a python3 with torch.
#   WEFT_SANITIZE_TESTS   gtest filter of what compute-sanitizer runs: kernels, not the libraries' own
#   WEFT_CONFIGS          what bench and compare run, configs/h200_*.toml; where the text they name is missing, noise is read
#   WEFT_COMPARE_ROUNDS   of compare, 2
#   WEFT_LIMIT_<PART>     seconds for each thing of a part, e.g. WEFT_LIMIT_BENCH=60
set -uo pipefail
if [[ $# -eq 0 || $1 == -* ]]; then
  sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
out=$(realpath -m "$1")
shift
[[ $# -gt 0 ]] || set -- build test sanitize bench compare
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
mkdir -p "$out"
: >"$out/summary.txt"
tree=build-gpu
sanitize_tests=${WEFT_SANITIZE_TESTS:-"-*Cudnn*:*Nccl*:*Training*:*Versions*"}
read -r -a configs <<<"${WEFT_CONFIGS:-$(echo configs/h200_*.toml)}"
failed=0

# Speed does not depend on what the text says (routers are balanced by their loss, not by the text): a machine without
# the dictionary trains on base64. Fills `text` with the argument that says so, or with none.
choose_text() {
  text=()
  if [[ ! -s data/gcide.txt ]]; then
    mkdir -p "$tree"
    [[ -s $tree/noise.txt ]] || head -c 6291456 /dev/urandom | base64 -w 0 >"$tree/noise.txt"  # 8 MiB
    text=("--data.train=[\"$tree/noise.txt\"]")
  fi
}

# measured NAME LIMIT FILE COMMAND...: runs it under a limit, its output appended to OUT/FILE, its line in the summary.
measured() {
  local name=$1 limit=$2 file=$3 start=$SECONDS code=0
  shift 3
  timeout --kill-after=10 "$limit" "$@" >>"$out/$file" 2>&1 </dev/null || code=$?
  echo "$name $((SECONDS - start)) $code" | tee -a "$out/summary.txt"
  if [[ $code -ne 0 ]]; then
    failed=1
    tail -n 20 "$out/$file"
  fi
  return "$code"
}

wheels_folder() {
  python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null
}

find_nvcc() {
  local candidate
  for candidate in "${CUDACXX:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc "$(wheels_folder)/cu13/bin/nvcc"; do
    if [[ -x $candidate ]]; then
      echo "$candidate"
      return
    fi
  done
}

# A toolkit that lacks a header or library of ours is completed from the wheels.
# shellcheck disable=SC2317  # called through configure_and_build
cuda_root() {
  local nvcc root wheels name
  nvcc=$(find_nvcc)
  [[ -n $nvcc ]] || { echo "gpu.sh: no nvcc on the PATH, in /usr/local/cuda or among python3's wheels" >&2; return 1; }
  root=$(realpath "$("$nvcc" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')") || return 1
  wheels=$(wheels_folder)
  for name in include/cublasLt.h include/nccl.h include/cudnn.h lib64/libcudart_static.a lib64/libcublasLt.so \
              lib64/libnccl.so lib64/libcudnn.so lib64/libnvrtc.so; do
    if [[ ! -e $root/$name && -n $wheels ]]; then
      tools/cuda-prefix.sh "$tree-cuda" "$root" "$wheels" >&2 || return 1
      realpath "$tree-cuda"
      return
    fi
  done
  echo "$root"
}

environment() {
  nvidia-smi
  nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.memory --format=csv
  echo; lscpu | grep -E '^(Model name|CPU\(s\)|Flags)' | cut -c1-4000; free -g | head -2
  echo; "$(find_nvcc)" --version | tail -2; c++ --version | head -1; cmake --version | head -1; ninja --version
  ldd --version | head -1; head -2 /etc/os-release
  python3 -c 'import torch; print("torch", torch.__version__, torch.backends.cudnn.version())' 2>/dev/null
  git rev-parse HEAD 2>/dev/null
}

# shellcheck disable=SC2317  # called by name, in a shell of its own
configure_and_build() {
  local capability root launcher=
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
  [[ $capability =~ ^[0-9]+$ ]] || { echo "gpu.sh: nvidia-smi tells no compute capability" >&2; return 1; }
  root=$(cuda_root) || return 1
  if command -v ccache >/dev/null; then launcher=ccache; fi
  # A compiler that nobody has tried yet may warn; its warnings are in build.txt.
  cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEFT_BUILD_TESTS=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF \
    -DWEFT_CUDA=ON "-DWEFT_CUDA_ROOT=$root" "-DCMAKE_CUDA_COMPILER=$(find_nvcc)" \
    "-DWEFT_CUDA_ARCHITECTURES=$capability-real" "-DWEFT_CUDA_JOBS=$(nproc)" \
    "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher" || return 1
  cmake --build "$tree" --target weft test_cuda
}
export -f environment configure_and_build cuda_root find_nvcc wheels_folder
export tree

environment >"$out/environment.txt" 2>&1
if [[ $1 != build && -x $tree/weft ]]; then "$tree/weft" --version >>"$out/environment.txt" 2>&1; fi
# Files with these names hold this call's results alone.
for part in "$@"; do
  limit=WEFT_LIMIT_${part^^}
  case "$part" in
    build)
      rm -f "$out/build.txt"
      if measured build "${!limit:-480}" build.txt bash -c configure_and_build; then
        "$tree/weft" --version >>"$out/environment.txt" 2>&1
      fi
      ;;
    test)
      rm -f "$out/tests.txt"
      measured test "${!limit:-300}" tests.txt ctest --test-dir "$tree" -L '^cuda$' --output-on-failure --no-tests=error
      ;;
    sanitize)
      sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$(find_nvcc)")/compute-sanitizer")
      for tool in memcheck racecheck; do
        rm -f "$out/$tool.txt"
        measured "$tool" "${!limit:-240}" "$tool.txt" "$sanitizer" --tool "$tool" --error-exitcode 9 \
          "$tree/test_cuda" "--gtest_filter=$sanitize_tests"
      done
      ;;
    bench)
      choose_text
      for config in "${configs[@]}"; do
        name=bench_$(basename "$config" .toml)
        rm -f "$out/$name.txt"
        measured "$name" "${!limit:-180}" "$name.txt" "$tree/weft" bench step "$config" --warmup 2 --steps 6 "${text[@]}"
      done
      ;;
    compare)
      choose_text
      for config in "${configs[@]}"; do
        name=compare_$(basename "$config" .toml)
        rm -f "$out/$name.txt"
        measured "$name" "${!limit:-480}" "$name.txt" env "WEFT=$tree/weft" tools/compare/step.sh "$config" \
          "${WEFT_COMPARE_ROUNDS:-2}" --warmup 2 --steps 5 "${text[@]}"
      done
      ;;
    *)
      echo "gpu.sh: there is no part '$part'; the parts are build, test, sanitize, bench and compare" >&2
      failed=1
      ;;
  esac
done
exit "$failed"
