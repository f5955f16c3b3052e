#!/usr/bin/env bash
# Merges a CUDA toolkit and PyPI's wheels into one folder of links in the shape of a toolkit (bin, include, lib, lib64,
# nvvm, unversioned lib*.so). CMake finds wheels where they are; cuDNN, when it runs, looks for the run-time compiler
# beside itself, and wheels keep the two apart. Of a file that several bring, the first wins.
#   tools/cuda-prefix.sh FOLDER SOURCE...
# A SOURCE is a toolkit (/usr/local/cuda) or the folder nvidia of a site-packages, which holds cu13, nccl and cudnn.
#   tools/cuda-prefix.sh build-cuda-prefix /usr/local/cuda /opt/venv/lib/python3.12/site-packages/nvidia
#   cmake --preset release -DWEFT_CUDA_ROOT=$PWD/build-cuda-prefix
set -euo pipefail
if [[ $# -lt 2 || $1 == -* ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
folder=$(realpath -m -- "$1")
shift
made=$folder/.made-by-cuda-prefix
if [[ -e $folder && ! -e $made ]]; then
  echo "cuda-prefix.sh: $folder is there without $(basename "$made"); remove it if this script made it" >&2
  exit 1
fi

parts=()
for source in "$@"; do
  source=$(realpath -- "$source")
  for part in "$source" "$source"/{cu13,nccl,cudnn}; do
    if [[ -d $part/include || -d $part/lib || -d $part/bin ]]; then parts+=("$part"); fi
  done
done
if [[ ${#parts[@]} -eq 0 ]]; then
  echo "cuda-prefix.sh: neither include, lib nor bin below: $*" >&2
  exit 1
fi

rm -rf "$folder"
mkdir -p "$folder"/{bin,include,lib}
touch "$made"
ln -s lib "$folder/lib64"
for part in "${parts[@]}"; do
  for kind in bin include lib; do
    from=$part/$kind
    if [[ $kind == lib && -d $part/lib64 ]]; then from=$part/lib64; fi
    # Newer versions of cp complain of files that are there already.
    if [[ -d $from ]]; then cp -rs --no-clobber "$(realpath "$from")/." "$folder/$kind/" 2>/dev/null || true; fi
  done
  if [[ -d $part/nvvm && ! -e $folder/nvvm ]]; then ln -s "$part/nvvm" "$folder/nvvm"; fi
done
for library in "$folder"/lib/lib*.so.*; do
  [[ -e $library ]] || continue
  name=$(basename "$library")
  [[ -e $folder/lib/${name%%.so.*}.so ]] || ln -s "$name" "$folder/lib/${name%%.so.*}.so"
done
echo "$folder: $(printf '%s ' "${parts[@]}")"
