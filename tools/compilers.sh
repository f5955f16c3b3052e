#!/usr/bin/env bash
# Has newer compilers than Debian 12's read all that is compiled without CUDA, and every header by itself. They run in a
# root of Debian 13 that is made for it. Headers that one compiler brings by chance need not come with the next one
# (tests/tools/floors_test.cpp holds the sources to the headers they name).
#   tools/compilers.sh [COMPILER...]           g++-13 g++-14 clang++-19 unless named
#   tools/compilers.sh test COMPILER           builds there and runs the whole suite
# Warnings are errors with g++. Wants root and debootstrap, and takes 2 GB.
#   WEFT_ROOT   where that system is or is to be, /var/tmp/weft-trixie unless given
set -euo pipefail
[[ " $*" != *" -"* ]] || { echo "usage: tools/compilers.sh [test] [COMPILER...]" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=${WEFT_ROOT:-/var/tmp/weft-trixie}
whole=0
if [[ ${1:-} == test ]]; then
  whole=1
  shift
  [[ $# -eq 1 ]] || { echo "compilers.sh: test takes one compiler" >&2; exit 2; }
fi
[[ $# -gt 0 ]] || set -- g++-13 g++-14 clang++-19

if [[ ! -x $root/usr/bin/apt-get ]]; then
  command -v debootstrap >/dev/null || { echo "compilers.sh: debootstrap is missing" >&2; exit 1; }
  debootstrap --variant=minbase --include=ca-certificates trixie "$root" http://deb.debian.org/debian >/dev/null
fi
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
  bash -euo pipefail -c "$1" - "${@:2}"; }

packages=()
for compiler in "$@"; do
  packages+=("${compiler/clang++/clang}")
  # g++ brings its OpenMP along.
  if [[ $compiler == clang* ]]; then packages+=("libomp-${compiler##*-}-dev"); fi
done
# Every file of the tree that git knows or would take, as it stands, and none of a run before.
mkdir -p "$root/weft"
find "$root/weft" -mindepth 1 -maxdepth 1 ! -name 'build*' -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard | xargs -0 -I{} sh -c '[ -e "{}" ] && printf "%s\0" "{}"' |
  tar -cf - --null -T - | tar -C "$root/weft" -xf -
mount --bind /proc "$root/proc"
trap 'umount "$root/proc"' EXIT
inside 'apt-get -qq update >/dev/null; apt-get -qq install -y --no-install-recommends "$@" >/dev/null' "${packages[@]}"
inside 'cd /weft && tools/install-packages.sh build test'

failed=0
for compiler in "$@"; do
  begin=$SECONDS
  options=(-DWEFT_CUDA=OFF -DWEFT_BUILD_TESTS=ON "-DCMAKE_CXX_COMPILER=$compiler" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
  # fmt's headers bring clang to warn of what they do themselves.
  if [[ $compiler == clang* ]]; then options+=(-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF); fi
  if ((whole)); then
    # shellcheck disable=SC2016  # expanded in there
    inside '
      cd /weft; tree=build-$1; shift
      cmake --preset release -B "$tree" "$@" >/dev/null
      cmake --build "$tree"
      ctest --test-dir "$tree" -j2 --output-on-failure --no-tests=error' "$compiler" "${options[@]}" || failed=1
    continue
  fi
  # shellcheck disable=SC2016  # expanded in there
  inside '
    cd /weft; compiler=$1 tree=build-read-$1; shift
    cmake --preset release -B "$tree" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON "$@" >/dev/null
    cd "$tree"
    sed -n "s/^ *\"command\": \"\(.*\)\",\{0,1\}$/\1/p" compile_commands.json | sed "s/\\\\\"/\"/g; s/\\\\\\\\/\\\\/g" >commands
    # And each header by itself, but those of the toolkit that is not there.
    for header in $(cd /weft && grep -rLE "cuda|cudnn|nccl|mpi\.h" --include=*.h parallel layers trainer tools); do
      echo "$compiler -std=c++20 -march=x86-64-v3 -I/weft -Wall -Wextra -Wno-pragma-once-outside-header -x c++ /weft/$header"
    done >>commands
    : >refused
    xargs -d "\n" -P "$(nproc)" -I{} bash -c "{} -O0 -fsyntax-only || echo \"{}\" >>refused" <commands 2>said || true
    grep "error:" said | sort -u | head -n 40 || true' \
    "$compiler" "${options[@]}" || failed=1
  refused=$(wc -l <"$root/weft/build-read-$compiler/refused")
  echo "compilers: $compiler read $(wc -l <"$root/weft/build-read-$compiler/commands") files and refused $refused," \
    "$((SECONDS - begin)) s"
  [[ $refused -eq 0 ]] || failed=1
done
exit "$failed"
