#!/usr/bin/env bash
# From a fresh checkout to a trained model. Installs packages, builds, and unpacks a dictionary to train on. Then runs
# configs/quickstart.toml on the CPU and shows the text that the model writes. Repeating it does only what is not done
# yet.
set -euo pipefail
[[ $# -eq 0 ]] || { echo "usage: tools/quickstart.sh, without arguments" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/ready-for-cpu.sh
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
