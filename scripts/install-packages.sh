#!/usr/bin/env bash
# install-packages.sh [test|bench]...: installs the Debian packages of packages.txt (and of test-packages.txt,
# bench-packages.txt) that are missing. Without root or apt-get it names them and stops, so that somebody who may can install them.
set -euo pipefail
lists=("$(dirname "$0")/packages.txt")
for more in "$@"; do lists+=("$(dirname "$0")/$more-packages.txt"); done

missing=()
while read -r package; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done < <(cat "${lists[@]}" | grep -v '^#')
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "holdfast: these packages are missing: ${missing[*]}" >&2
    echo "holdfast: install them (as root: apt-get install ${missing[*]}) and run this again" >&2
    exit 1
fi
echo "installing ${missing[*]}" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
