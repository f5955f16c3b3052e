#!/usr/bin/env bash
# Installs what Weft needs on Debian 12, and only what is missing. Arguments choose: build, test, data (default: all).
set -euo pipefail

packages_for() {
  case "$1" in
    build) echo g++ cmake ninja-build libdnnl-dev libtomlplusplus-dev libcli11-dev libfmt-dev nlohmann-json3-dev \
                librandom123-dev libxxhash-dev ;;
    test) echo libgtest-dev ;;
    data) echo dict-gcide ;;
    *) echo "install-packages.sh: unknown group $1 (build, test, data)" >&2; exit 2 ;;
  esac
}

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

[ $# -gt 0 ] || set -- build test data
missing=()
for group in "$@"; do
  for package in $(packages_for "$group"); do
    is_installed "$package" || missing+=("$package")
  done
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || { echo "Weft needs these packages, and there is no apt-get here: ${missing[*]}" >&2; exit 1; }
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "Installing ${missing[*]} needs root or sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
