#!/usr/bin/env bash
# Collects the needs of Weft besides a compiler, CMake, ninja and CUDA into one folder, and packs it as FOLDER.tar.xz
# beside it. The folder is for a machine without a network and without these packages. Run it where they are installed
# (tools/install-packages.sh build test). tools/gpu.sh finds .gpu/deps or .gpu/deps.tar.xz by itself; CMake is told
# -DWEFT_DEPS=FOLDER, so that no other build changes because the folder is there.
#   tools/vendor-deps.sh [FOLDER]      FOLDER is made anew; .gpu/deps unless given
# Everything is source or headers except oneDNN and the archives of PCRE2, utf8proc, zlib and zstd. oneDNN's x86-64
# library travels with the OpenCL loader that it names. They run wherever glibc is 2.34 or newer and libstdc++ is GCC
# 11's or newer.
set -euo pipefail
[[ $# -le 1 && ${1:-} != -* ]] || { echo "usage: tools/vendor-deps.sh [FOLDER]" >&2; exit 2; }
folder=$(realpath -m -- "${1:-$(dirname "${BASH_SOURCE[0]}")/../.gpu/deps}")

headers=(CLI Random123 fmt nlohmann oneapi toml++ xxhash.h pcre2.h utf8proc.h zlib.h zconf.h zstd.h)
packages=(libcli11-dev librandom123-dev libfmt-dev nlohmann-json3-dev libdnnl-dev libtomlplusplus-dev libxxhash-dev
          libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libjs-dygraphs googletest)
libraries=(libdnnl.so.2 libOpenCL.so.1)
archives=(libpcre2-8.a libutf8proc.a libz.a libzstd.a)

missing=()
for package in "${packages[@]}"; do
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -gt 0 ]]; then
  echo "vendor-deps.sh: install these first: ${missing[*]}" >&2
  exit 1
fi
made=$folder/.made-by-vendor-deps
if [[ -e $folder && ! -e $made ]]; then
  echo "vendor-deps.sh: $folder is there without $(basename "$made"); remove it if this script made it" >&2
  exit 1
fi

rm -rf "$folder"
mkdir -p "$folder"/{include,lib,licenses,share/dygraphs,src/googletest}
touch "$made"
for header in "${headers[@]}"; do cp -rL "/usr/include/$header" "$folder/include/"; done
cp -rL /usr/src/googletest/googletest/{include,src} "$folder/src/googletest/"
cp -L /usr/share/javascript/dygraphs/dygraph.min.{js,css} "$folder/share/dygraphs/"
# Under the names that programs ask for and without links, which not every way of copying a folder keeps.
for library in "${libraries[@]}"; do
  path=$(ldconfig -p | awk -v name="$library" '$1 == name && /x86-64/ { print $NF; exit }')
  cp -L "$path" "$folder/lib/$library"
done
for archive in "${archives[@]}"; do cp -L "/usr/lib/x86_64-linux-gnu/$archive" "$folder/lib/"; done
for package in "${packages[@]}" libdnnl2 ocl-icd-libopencl1; do
  if [[ -r /usr/share/doc/$package/copyright ]]; then
    cp -L "/usr/share/doc/$package/copyright" "$folder/licenses/$package"
  fi
done
tar -C "$(dirname "$folder")" -cf - "$(basename "$folder")" | xz -T0 -9 >"$folder.tar.xz"
echo "$folder: $(du -sh "$folder" | cut -f1), packed $(du -sh "$folder.tar.xz" | cut -f1)"
