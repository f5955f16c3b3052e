#!/usr/bin/env bash
# Builds, tests, checks of memory and races, and measurements that need a GPU. Parts take at most ten minutes on a
# machine that has one.
#   tools/gpu.sh OUT PART...      parts: build unpack attention kernels rest training processes overlap memcheck
#                                        racecheck bench float8 products listed captured compare table
#                                        counters
#   tools/gpu.sh OUT 1|2|3|4|5|6  calls of several parts, for machines that are lent by the call; see CALLS below
# Writes into the folder OUT at most eight files in a call: environment.txt, a text for each part, and summary.txt. The
# last has a line "name seconds exit-code" for each thing run (124: it outlasted its limit). A part that fails does not
# keep the next from running; the exit code is 1 if anything failed. The tree is build-gpu/. `unpack` fills it from
# .gpu/gpu-programs.tar.xz (tools/gpu-pack.sh); on a machine without the tree it goes before any other part. `build`
# builds there, and wants a compiler, CMake, ninja and Weft's dependencies, installed or in .gpu (tools/vendor-deps.sh).
# Either wants CUDA: a toolkit, and what the toolkit lacks from the wheels of the python3 at hand. `compare` wants a
# python3 with torch.
#   WEFT_CONFIGS          what bench, compare and table run; otherwise configs/h200_*.toml, or where the GPU has less than
#                         120 GB configs/h100_*.toml. Those that the plan says do not fit are left out, and named. Where the
#                         text they name is missing, noise is read
#   WEFT_COMPARE_ROUNDS   of compare, 2
#   WEFT_LIMIT_<PART>     seconds for each thing of a part, e.g. WEFT_LIMIT_BENCH=60
# shellcheck disable=SC2317  # functions run under a limit, in a shell of their own, by name
set -uo pipefail
if [[ $# -lt 2 || $1 == -* ]]; then
  sed -n '2,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
out=$(realpath -m "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
tree=build-gpu
failed=0 only_first=0 but_first=0

# CALLS. One configuration is enough to see whether it runs and where its time goes. The limits of a call's things, with
# unpack, add up to 580 seconds at most.
call=$1
case "$call" in
  1) set -- "$([[ -e .gpu/gpu-programs.tar.xz ]] && echo unpack || echo build)" kernels bench; only_first=1 ;;
  2) set -- table counters compare listed; only_first=1 ;;
  3) set -- compare; but_first=1 ;;
  4) set -- attention memcheck racecheck ;;
  5) set -- processes overlap training; only_first=1 ;;
  6) set -- rest float8 products captured; only_first=1 ;;
esac
known=' build unpack attention kernels rest training processes overlap memcheck racecheck bench float8 products listed'
known+=' captured compare table counters '
for part in "$@"; do
  [[ $known == *" $part "* ]] || { echo "gpu.sh: there is no part '$part'" >&2; exit 2; }
done
mkdir -p "$out"
: >"$out/summary.txt"
# Each call may meet another machine.
if [[ $1 != build && $1 != unpack && ! -x $tree/weft && -e .gpu/gpu-programs.tar.xz ]]; then set -- unpack "$@"; fi

# Kernels: no timing, no memory that runs out, no second process.
kernel_tests='*Elementwise*:*Reduction*:*Sort*:*RmsNorm*:*Swiglu*:*Rotary*:*Embedding*:*CrossEntropy*:*Permutation*:*Routing*'
kernel_tests+=':*LoadBalance*:*Attention*:*ExpertCapacity*:*Float8*:*MatrixProducts*:*MeasuredProducts*:*Update*'
kernel_tests+=':*MuonKernels*:*Versions*:*StateSpace.*'
# racecheck finds nothing of use in the libraries' kernels.
own_kernel_tests="$kernel_tests-*Products*:*Sort*:*Attention*"
# Tests that start further processes, and those of time, each a part of its own.
process_tests='*Process*'
overlap_tests='*Overlap*:*WaitingKernels*'
training_tests='*CudaTraining*:*CapturedRegions*:*CudaMemory*:*CudaTrainedModel*:*CudaCheckpoint*:*CudaSchedules*:*CudaMuon.*:*CudaEvaluation*'
# Segments, memory, faults: all that no other part runs, so that no suite is left out.
rest_tests="-$kernel_tests:$training_tests:$process_tests:$overlap_tests"

# Speed does not depend on the contents of the text, since routers are balanced by their loss. A machine without the
# dictionary trains on base64. Fills `text` with the argument that says so, or with none.
choose_text() {
  text=()
  if [[ ! -s data/gcide.txt ]]; then
    mkdir -p "$tree"
    [[ -s $tree/noise.txt ]] || head -c 6291456 /dev/urandom | base64 -w 0 >"$tree/noise.txt"  # 8 MiB
    text=("--data.train=[\"$tree/noise.txt\"]")
  fi
}

gpu_bytes() {
  echo $(($(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1) << 20))
}

# Bytes that the plan of a configuration for one GPU wants of it.
planned_bytes() {
  "$tree/weft" plan "$1" --json | tr ',{' '\n' | awk -F: '
    /^"peak_bytes"/ && !peak { peak = $2 }
    /^"runtime_reserve"/ && !reserve { reserve = $2 }
    END { printf "%.0f\n", peak + reserve }'
}

# Fills `configs` with those that fit.
choose_configs() {
  local named total config
  total=$(gpu_bytes)
  if [[ -n ${WEFT_CONFIGS:-} ]]; then
    read -r -a named <<<"$WEFT_CONFIGS"
  elif ((total < 120000000000)); then
    named=(configs/h100_*.toml)
  else
    named=(configs/h200_*.toml)
  fi
  configs=()
  for config in "${named[@]}"; do
    if (($(planned_bytes "$config") > total)); then
      echo "$config left out: it wants $(planned_bytes "$config") bytes of $total" | tee -a "$out/summary.txt"
    else
      configs+=("$config")
    fi
  done
  if ((only_first)); then configs=("${configs[@]:0:1}"); fi
  if ((but_first)); then configs=("${configs[@]:1}"); fi
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
# run NAME SECONDS COMMAND...: the same into the text of the part, for so long or as the environment says.
run() {
  local limit=WEFT_LIMIT_${part^^}
  measured "$1" "${!limit:-$2}" "$part.txt" "${@:3}"
}

# Clock and power while something runs, twice a second: a card at its power limit is as fast as its clock allows.
watch_power() {
  nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader,nounits -lms 500 >"$tree/power.csv" \
    2>/dev/null &
  watcher=$!
}
# tell_power FILE WHAT: appends to OUT/FILE what watch_power saw.
tell_power() {
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  sort -t, -k2,2g "$tree/power.csv" | awk -F', *' -v what="$2" '
    { clock[NR] = $1; power[NR] = $2; heat[NR] = $3 }
    END {
      for (i = int(NR / 2) + 1; i <= NR; ++i) { clocks += clock[i]; powers += power[i]; heats += heat[i]; ++n }
      if (n) printf "%s, the half of the time with most power: %.0f MHz, %.0f W, %.0f C\n", what, clocks / n, powers / n, heats / n
    }' >>"$out/$1"
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

# A tool of the toolkit that may stand beside nvcc without being on the PATH.
cuda_tool() {
  command -v "$1" || echo "$(dirname "$(find_nvcc)")/$1"
}

# A toolkit that lacks a header or library of ours is completed from the wheels.
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

programs=(weft test_cuda test_cudnn_attention)

configure_and_build() {
  local capability root launcher='' dependencies=()
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
  [[ $capability =~ ^[0-9]+$ ]] || { echo "gpu.sh: nvidia-smi tells no compute capability" >&2; return 1; }
  root=$(cuda_root) || return 1
  if command -v ccache >/dev/null; then launcher=ccache; fi
  if [[ ! -d .gpu/deps && -e .gpu/deps.tar.xz ]]; then tar -C .gpu -xJf .gpu/deps.tar.xz || return 1; fi
  if [[ -d .gpu/deps/include ]]; then dependencies=(-DWEFT_DEPS="$PWD/.gpu/deps" -DWEFT_MPI=OFF); fi
  # An untried compiler may warn; its warnings are in build.txt.
  cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEFT_BUILD_TESTS=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF \
    -DWEFT_CUDA=ON "-DWEFT_CUDA_ROOT=$root" "-DCMAKE_CUDA_COMPILER=$(find_nvcc)" \
    "-DWEFT_CUDA_ARCHITECTURES=$capability-real" "-DWEFT_CUDA_JOBS=$(nproc)" -DWEFT_GPU_TESTS=ON \
    "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher" "${dependencies[@]}" || return 1
  cmake --build "$tree" --target "${programs[@]}" || return 1
  cmake --build "$tree" --target kernel_table || echo "gpu.sh: no CUPTI, and so no part table"
}

# The programs look for CUDA in the folder cuda beside them.
unpack() {
  mkdir -p "$tree" && tar -C "$tree" -xJf .gpu/gpu-programs.tar.xz || return 1
  local root
  root=$(cuda_root) || return 1
  ln -sfn "$root" "$tree/cuda"
  "$tree/weft" --version
}

# sharded COUNT FILTER [TOOL...]: tests that share nothing, in COUNT processes at a time, under a tool if one is named.
sharded() {
  local count=$1 filter=$2 shard failed=0 jobs=()
  for ((shard = 0; shard < count; ++shard)); do
    GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$shard "${@:3}" "$tree/test_cuda" "--gtest_filter=$filter" &
    jobs+=($!)
  done
  for shard in "${jobs[@]}"; do wait "$shard" || failed=1; done
  return "$failed"
}

# Kernels of two steps by phase, segment and name, from a library that the driver loads (tools/profile/kernel_table.cpp).
kernel_table() {
  local library=$PWD/$tree/libkernel_table.so name
  [[ -e $library ]] || { echo "gpu.sh: $library is not there: the toolkit has no CUPTI, or build has not run" >&2; return 1; }
  name=$(basename "$1" .toml)
  CUDA_INJECTION64_PATH=$library NVTX_INJECTION64_PATH=$library KERNEL_TABLE=$out/kernels_$name.tsv "$tree/weft" train "$1" \
    "--run.directory=$tree/profiled_$name" --run.steps=5 --lr_scheduler.warmup_steps=1 --checkpoint.at_end=false \
    --profiling.first_step=4 --profiling.last_step=5 "${@:2}" || return 1
  gzip -c "$tree/profiled_$name/trace_rank0.json" >"$out/trace_$name.json.gz"
  head -n 40 "$out/kernels_$name.tsv"
  "$tree/weft" plan "$1" --kernels --measured "$out/kernels_$name.tsv" --measured-steps 2 "${@:2}"
}

# Counters of a hundred kernels of a model of two blocks. Timed products would be counted in their place.
kernel_counters() {
  local metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
  metrics+=,sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active,launch__registers_per_thread
  "$(cuda_tool ncu)" --clock-control none --csv --page raw --launch-skip 120 --launch-count 100 --metrics "$metrics" \
    "$tree/weft" bench step "$1" --model.layers='d*2' --run.measured_products=false --clock host --warmup 1 --steps 1 \
    "${@:2}"
}

export -f configure_and_build cuda_root find_nvcc wheels_folder cuda_tool unpack sharded kernel_table kernel_counters
export tree out WEFT_PROGRAM=$PWD/$tree/weft

environment >"$out/environment.txt" 2>&1
if [[ $1 != build && -x $tree/weft ]]; then "$tree/weft" --version >>"$out/environment.txt" 2>&1; fi
# shellcheck disable=SC2016  # expanded where they run
for part in "$@"; do
  rm -f "$out/$part.txt"
  case "$part" in
    build)
      if run build 340 bash -c "programs=(${programs[*]}); configure_and_build"; then
        "$tree/weft" --version >>"$out/environment.txt" 2>&1
      fi
      ;;
    unpack) measured unpack "${WEFT_LIMIT_UNPACK:-30}" environment.txt bash -c unpack ;;
    attention) run attention 200 "$tree/test_cudnn_attention" ;;
    kernels) run kernels 100 bash -c 'sharded 3 "$@"' - "$kernel_tests" ;;
    rest) run rest 180 bash -c 'sharded 3 "$@"' - "$rest_tests" ;;
    training) run training 60 bash -c 'sharded 4 "$@"' - "$training_tests" ;;
    processes) run processes 270 "$tree/test_cuda" "--gtest_filter=$process_tests" ;;
    overlap) run overlap 120 "$tree/test_cuda" "--gtest_filter=$overlap_tests" ;;
    memcheck)
      # Errors of the API are told by the tests themselves.
      run memcheck 150 bash -c 'sharded 4 "$@"' - "$kernel_tests" "$(cuda_tool compute-sanitizer)" --tool memcheck \
        --report-api-errors no --error-exitcode 9
      ;;
    racecheck)
      run racecheck 180 bash -c 'sharded 4 "$@"' - "$own_kernel_tests" "$(cuda_tool compute-sanitizer)" --tool racecheck \
        --error-exitcode 9
      ;;
    *)
      choose_text
      choose_configs
      for config in "${configs[@]}"; do
        name=$(basename "$config" .toml)
        bench=("$tree/weft" bench step "$config" --warmup 2)
        watch_power
        case "$part" in
          bench) run "bench_$name" 150 "${bench[@]}" --steps 6 "${text[@]}" ;;
          float8)
            for format in float8 float8_blocks; do
              run "${format}_$name" 50 "${bench[@]}" --steps 6 --precision.compute=$format "${text[@]}"
            done
            ;;
          products)
            # Each product of a step alone: the rate by shape.
            for dtype in bfloat16 float8 float8_blocks; do
              run "products_${dtype}_$name" 33 "$tree/weft" bench products "$config" --precision.compute=$dtype "${text[@]}"
            done
            ;;
          # The library's first algorithm of each product, beside the timed ones of bench.
          listed) run "listed_$name" 55 "${bench[@]}" --steps 4 --run.measured_products=false "${text[@]}" ;;
          # Segments as CUDA graphs, beside the launches of bench.
          captured) run "captured_$name" 55 "${bench[@]}" --steps 4 --run.captured_regions=true "${text[@]}" ;;
          compare)
            run "compare_$name" 270 env "WEFT=$tree/weft" tools/compare/step.sh "$config" "${WEFT_COMPARE_ROUNDS:-2}" \
              --warmup 2 --steps 5 "${text[@]}"
            ;;
          table) run "table_$name" 110 bash -c 'kernel_table "$@"' - "$config" "${text[@]}" ;;
          counters) run "counters_$name" 100 bash -c 'kernel_counters "$@"' - "$config" "${text[@]}" ;;
        esac
        tell_power "$part.txt" "$name"
      done
      ;;
  esac
done
cat "$out/summary.txt"
exit "$failed"
