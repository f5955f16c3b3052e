#!/usr/bin/env bash
# From a fresh Debian 12 to a trained model: installs what is missing, builds, fetches text, trains configs/quickstart.toml
# on 8 ranks in this process (pp 2 x tp 2 x dp_shard 2, experts over 2).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install-packages.sh build data
echo "building (a few minutes the first time)"
tools/build.sh weft

text=data/gcide.txt
if [ ! -s "$text" ]; then
  mkdir -p data
  gzip -dc </usr/share/dictd/gcide.dict.dz >"$text.partial"
  mv "$text.partial" "$text"
fi
build/weft train configs/quickstart.toml

cat <<'NEXT'

What to do next
  see what a step does      build/weft program configs/quickstart.toml --stages-only --format csv
  see the shard units       build/weft units configs/quickstart.toml
  read the measurements     runs/quickstart/metrics.jsonl and runs/quickstart/summary.json
  try another layout        build/weft train configs/quickstart.toml --parallelism.pipeline=1 --parallelism.data_shard=4
  run the tests             tools/test.sh
NEXT
