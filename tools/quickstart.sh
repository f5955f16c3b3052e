#!/usr/bin/env bash
# From a fresh checkout to a trained model: installs packages, builds, unpacks a dictionary to train on, and runs
# configs/quickstart.toml on the CPU, then shows what the model writes. Repeating it does only what is not done yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install-packages.sh build data
# It trains on the CPU; without a GPU to try, the CUDA backend would only make the first build take twice as long.
if ! command -v nvidia-smi >/dev/null; then export WEFT_CUDA="${WEFT_CUDA:-OFF}"; fi
tools/build.sh weft

dictionary=/usr/share/dictd/gcide.dict.dz
if [[ ! -s data/gcide.txt ]]; then
  if [[ ! -r $dictionary ]]; then
    echo "quickstart.sh: $dictionary is not there, although the package dict-gcide should have brought it" >&2
    echo "Put any large text file at data/gcide.txt and run this again." >&2
    exit 1
  fi
  echo "data: unpacking the GCIDE dictionary into data/gcide.txt"
  mkdir -p data
  # Renamed when complete, so that an interruption never leaves half a file to train on.
  gzip --decompress --stdout <"$dictionary" >data/gcide.txt.partial
  mv data/gcide.txt.partial data/gcide.txt
fi

build/weft train configs/quickstart.toml

printf '\nWhat the model writes:\n\n'
build/weft generate runs/quickstart --prompt "The " --max-tokens 120 --temperature 0.7 --seed 1

cat <<'END'


Done. What to look at next:
  runs/quickstart/metrics.jsonl                  every step: loss, gradient norm, memory and communication
  build/weft program configs/quickstart.toml     the actions of one step, for every rank
  build/weft units configs/quickstart.toml       what is sharded, over which ranks, and why
  build/weft generate runs/quickstart --prompt "A weaver " --parallelism.tensor=2
Change [parallelism] in configs/quickstart.toml and train with --run.directory=runs/another: the losses stay the same up to
rounding.
tools/test.sh builds and runs the tests.
END
