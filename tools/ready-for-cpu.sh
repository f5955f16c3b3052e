#!/usr/bin/env bash
# The first steps of the examples on the CPU: installs packages, builds build/weft, and leaves the GCIDE dictionary as
# data/gcide.txt, from Debian's package dict-gcide.
set -euo pipefail
[[ $# -eq 0 ]] || { echo "usage: tools/ready-for-cpu.sh, without arguments" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install-packages.sh build data
# Without a GPU to try, the CUDA backend would only make the first build take longer. A tree that has it keeps it.
if ! command -v nvidia-smi >/dev/null; then
  cuda=$(sed -n 's/^WEFT_CUDA:[A-Z]*=//p' build/CMakeCache.txt 2>/dev/null || true)
  export WEFT_CUDA="${WEFT_CUDA:-${cuda:-OFF}}"
fi
tools/build.sh weft

dictionary=/usr/share/dictd/gcide.dict.dz
[[ -s data/gcide.txt ]] && exit 0
if [[ ! -r $dictionary ]]; then
  echo "$dictionary is not there, although the package dict-gcide should have brought it" >&2
  echo "Put any large text file at data/gcide.txt and run this again." >&2
  exit 1
fi
echo "data: unpacking the GCIDE dictionary into data/gcide.txt"
mkdir -p data
# Renamed when complete, so that an interruption never leaves half a file to train on.
gzip --decompress --stdout <"$dictionary" >data/gcide.txt.partial
mv data/gcide.txt.partial data/gcide.txt
