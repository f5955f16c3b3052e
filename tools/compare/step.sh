#!/usr/bin/env bash
# Weft against PyTorch on the same model, settings and text, in turn, so that both see the machine in the same mood.
#   tools/compare/step.sh CONFIG [ROUNDS] [--device cpu|cuda] [--warmup N] [--steps N] [--section.key=value ...]
# Each round, 3 unless given, runs both once, as processes of their own; who comes first alternates. Prints a table of
# tokens a second, the medians and their ratio. PyTorch that runs out of memory is given activation checkpointing, and the
# table says so.
#   WEFT           the program, build/weft unless given
#   PYTHON         one that has torch; unless given the first of python3 and /usr/bin/python3 that does
#   PYTORCH_FLAGS  more arguments of tools/compare/pytorch_step.py, e.g. --no-compile
# Wants an otherwise idle machine: PyTorch's threads wait for one another by spinning, and on a busy CPU lose ten times what
# Weft's do. On a CPU, Debian's python3-torch is fastest with libopenblas0-openmp, taken if installed: its default, pthreads,
# spins against OpenMP's threads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ $# -eq 0 || $1 == -* ]]; then
  sed -n '2,12s/^# \{0,1\}//p' tools/compare/step.sh >&2
  exit 2
fi

config=$1
shift
rounds=3
if [[ ${1:-} =~ ^[1-9][0-9]*$ ]]; then
  rounds=$1
  shift
fi
warmup=3 steps=10 overrides=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --warmup) warmup=${2:?}; shift ;;
    --steps) steps=${2:?}; shift ;;
    --device) overrides+=("--run.device=${2:?}"); shift ;;
    --*.*=*) overrides+=("$1") ;;
    *) echo "step.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift
done

weft=${WEFT:-build/weft}
[[ -x $weft ]] || { echo "step.sh: there is no $weft; tools/build.sh weft makes build/weft" >&2; exit 1; }
blas=/usr/lib/x86_64-linux-gnu/openblas-openmp
if [[ -d $blas ]]; then export LD_LIBRARY_PATH=$blas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
python=${PYTHON:-}
for candidate in python3 /usr/bin/python3; do
  if [[ -z $python ]] && "$candidate" -c 'import torch' 2>/dev/null; then python=$candidate; fi
done
[[ -n $python ]] || { echo "step.sh: no python3 has torch; on Debian: python3-torch and libopenblas0-openmp" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
read -r -a flags <<<"${PYTORCH_FLAGS:-}"

# Each leaves one JSON document for a round: FOLDER/<who>.<round>.
# shellcheck disable=SC2317  # both are called by name
run_weft() {
  # The host's clock, because the streams' would take all steps a second time.
  "$weft" bench step "$config" --json --clock host --warmup "$warmup" --steps "$steps" "${overrides[@]}" >"$folder/weft.$1"
}
# shellcheck disable=SC2317
run_pytorch() {
  local code=0
  "$python" tools/compare/pytorch_step.py "$config" --warmup "$warmup" --steps "$steps" "${flags[@]}" \
    "${overrides[@]}" >"$folder/pytorch.$1" || code=$?
  if [[ $code -eq 3 && " ${flags[*]} " != *" --checkpoint "* ]]; then
    flags+=(--checkpoint)
    run_pytorch "$1"
    return
  fi
  return "$code"
}

failed=0
for ((round = 1; round <= rounds; ++round)); do
  order=(weft pytorch)
  if ((round % 2 == 0)); then order=(pytorch weft); fi
  for who in "${order[@]}"; do
    "run_$who" "$round" || { echo "step.sh: $who failed in round $round" >&2; failed=1; : >"$folder/$who.$round"; }
  done
done

"$python" - "$folder" "$rounds" "$config" "${overrides[*]}" <<'END_OF_TABLE'
import json, statistics, sys

folder, rounds, config, overrides = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


def report(who, round):
    with open(f"{folder}/{who}.{round}") as file:
        text = file.read()
    return json.loads(text) if text else None


reports = {who: [report(who, round) for round in range(1, rounds + 1)] for who in ("weft", "pytorch")}
theirs = next(filter(None, reports["pytorch"]), None)
print(f"{config} {overrides}".rstrip())
if theirs:
    said = [f"attention {theirs['attention']}", f"experts {theirs['experts']}" if theirs["experts"] else "",
            "compiled" if theirs["compiled"] else "not compiled", "checkpointed" if theirs["checkpointed"] else ""]
    print(f"PyTorch {theirs['torch']} on {theirs['device']}, {theirs['compute']}: {', '.join(filter(None, said))}; "
          f"{theirs['parameters']} parameters, {theirs['peak_bytes'] / 2**30:.1f} GiB")
print(f"{'tokens/s':<10}{'weft':>12}{'pytorch':>12}")
show = lambda value: f"{value:>12,.0f}" if value else f"{'failed':>12}"
for round in range(rounds):
    print(f"{'round ' + str(round + 1):<10}" +
          "".join(show(reports[who][round] and reports[who][round]["tokens_per_second"]) for who in reports))
rates, tflops = {}, {}
for who, every in reports.items():
    there = list(filter(None, every))
    rates[who] = statistics.median([one["tokens_per_second"] for one in there]) if there else None
    tflops[who] = statistics.median([one["gflops_per_second"] for one in there]) / 1e3 if there else None
print(f"{'median':<10}" + "".join(show(rate) for rate in rates.values()))
peak = 989 if theirs and theirs["device"] != "cpu" else None  # TFLOP/s of an H100 or H200, bfloat16 without sparsity
for who in filter(tflops.get, tflops):
    share = f", {100 * tflops[who] / peak:.1f} % of {peak}" if peak else ""
    print(f"{who}: {tflops[who]:.4g} TFLOP/s{share}")
if all(rates.values()):
    print(f"weft / pytorch: {rates['weft'] / rates['pytorch']:.3f}")
END_OF_TABLE
exit "$failed"
