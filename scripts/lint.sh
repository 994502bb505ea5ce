#!/usr/bin/env bash
# lint.sh BUILD: checks formatting, and clang-tidy's findings in what BUILD compiles; needs clang-format and
# clang-tidy (Debian 12's).
set -euo pipefail
for tool in clang-format clang-tidy; do
    command -v "$tool" >/dev/null || { echo "holdfast: $tool is missing; install it (apt-get install $tool)" >&2; exit 1; }
done
mapfile -t files < <(git ls-files '*.cpp' '*.hpp')
clang-format --dry-run -Werror "${files[@]}"
cmake -S . -B "$1" -G Ninja -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
git ls-files '*.cpp' | while read -r file; do
    if grep -qF "/$file\"" "$1/compile_commands.json"; then echo "$file"; fi
done | xargs -P "$(nproc)" -n 4 clang-tidy -p "$1" --quiet --extra-arg=-Wno-unknown-warning-option --warnings-as-errors='*'
