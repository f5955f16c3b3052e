#!/usr/bin/env bash
# Packs the programs of a build, and what they link beside CUDA, for a machine with a GPU, so that nothing is built there.
#   tools/gpu-pack.sh [BUILD]      BUILD is build unless given; writes .gpu/gpu-programs.tar.xz
# There `tools/gpu.sh OUT unpack PART...` takes them. The machine there wants a glibc and a libstdc++ no older than
# here, and CUDA. CUDA's libraries are taken from its toolkit or its python3's wheels. The build must name the GPU's
# architecture: -DWEFT_CUDA_ARCHITECTURES=90-real. Wants patchelf.
set -euo pipefail
[[ $# -le 1 && ${1:-} != -* ]] || { echo "usage: tools/gpu-pack.sh [BUILD]" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build}
programs=(weft test_cuda test_cudnn_attention)
command -v patchelf >/dev/null || { echo "gpu-pack.sh: install patchelf first" >&2; exit 1; }

cmake --build "$build" --target "${programs[@]}" kernel_table
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/lib"
# RPATH, not RUNPATH: what a library asks for in turn is found too.
for program in "${programs[@]}"; do
  strip -o "$folder/$program" "$build/$program"
  patchelf --force-rpath --set-rpath "\$ORIGIN/lib:\$ORIGIN/cuda/lib64" "$folder/$program"
done
strip -o "$folder/libkernel_table.so" "$build/libkernel_table.so"
patchelf --force-rpath --set-rpath "\$ORIGIN/cuda/lib64:\$ORIGIN/cuda/extras/CUPTI/lib64" "$folder/libkernel_table.so"
# The C library and the compiler's are the machine's own.
ldd "${programs[@]/#/$build/}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp|libcuda|libcudnn.*|libnccl|libcublasLt|libcudart|libcupti)\.so' |
  while read -r library; do cp -L "$library" "$folder/lib/"; done
mkdir -p .gpu
tar -C "$folder" -cf - . | xz -T0 -6 >.gpu/gpu-programs.tar.xz
ls -lh .gpu/gpu-programs.tar.xz
