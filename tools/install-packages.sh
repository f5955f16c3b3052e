#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Weft needs and that are not there yet.
#   tools/install-packages.sh [build] [test] [fuzz] [data] [browser]      without arguments: all but browser
# When nothing is missing apt is not touched, so this needs neither root nor a network then.
set -euo pipefail

build=(g++ cmake ninja-build git libdnnl-dev libtomlplusplus-dev libcli11-dev libfmt-dev nlohmann-json3-dev
       librandom123-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev
       libsentencepiece-dev libsimdjson-dev libjs-dygraphs)
optional=(ccache)  # makes a second build quicker; nothing needs it
# Boost.Context runs CUDA kernels on the CPU; over MPI ranks can meet; SQLite reads exports of Nsight Systems.
tests=(libgtest-dev libboost-context-dev libopenmpi-dev openmpi-bin libsqlite3-dev)
# libFuzzer (tools/fuzz.sh) and the sanitizers (tools/sanitize.sh). The clang of Debian 12's package clang is too old:
# its std::source_location is empty.
fuzz=(clang-19 libclang-rt-19-dev libomp-19-dev)
data=(dict-gcide)  # the text that configs/quickstart.toml trains on
browser=(chromium)  # looks at the pages of weft report in tests, which are left out without it

needed=()
wished=()  # asked for only when apt has to run anyway
[[ $# -gt 0 ]] || set -- build test fuzz data
for group in "$@"; do
  case "$group" in
    build) needed+=("${build[@]}"); wished+=("${optional[@]}") ;;
    test) needed+=("${tests[@]}") ;;
    fuzz) needed+=("${fuzz[@]}") ;;
    data) needed+=("${data[@]}") ;;
    browser) needed+=("${browser[@]}") ;;
    *) echo "install-packages.sh: there is no group '$group'; the groups are build, test, fuzz, data and browser" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  {
    echo "install-packages.sh: this system has no apt, so it cannot tell or install what is missing."
    echo "Install what Debian calls: ${needed[*]}"
    echo "and then build with tools/build.sh."
  } >&2
  exit 1
fi

# Prints those of the given packages that are not installed.
missing_of() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}
mapfile -t missing < <(missing_of "${needed[@]}")
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "packages: all present"
  exit 0
fi
mapfile -t missing_optional < <(missing_of "${wished[@]}")

as_root=(env DEBIAN_FRONTEND=noninteractive)
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install-packages.sh: missing, and neither root nor sudo is at hand: ${missing[*]}" >&2
    echo "Run as root: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo "${as_root[@]}")
fi
# Another apt (a machine's first-boot updates, for example) is waited for rather than failed on.
apt() { "${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >/dev/null; }

echo "packages: installing ${missing[*]}"
apt update || echo "install-packages.sh: the package lists could not be renewed; going on with those at hand" >&2
if ! apt install -y --no-install-recommends "${missing[@]}"; then
  echo "install-packages.sh: apt could not install what is missing: ${missing[*]}" >&2
  exit 1
fi
for package in "${missing_optional[@]}"; do
  apt install -y --no-install-recommends "$package" ||
    echo "install-packages.sh: going on without $package, which nothing needs" >&2
done
