#!/usr/bin/env bash
# test.sh NAME BUILD CMAKE-FLAGS...: builds everything in BUILD and runs its tests, unless the same
# binaries, scripts and golden files passed before.
set -euo pipefail
name="$1" build="$2"; shift 2
cmake -S . -B "$build" -G Ninja -DHOLDFAST_TESTS=ON "$@" >/dev/null
cmake --build "$build"

state="$( (find "$build/src" "$build/tests" "$build"/libholdfast.so -maxdepth 1 -perm -u+x -not -type d -print0
           find bench cmake docs/contexts.md examples include tests -type f -not -path '*/__pycache__/*' -print0) |
         sort -z | xargs -0 sha256sum | sha256sum)"
if [ "$(cat "$build/tests.passed" 2>/dev/null)" = "$state" ]; then
    echo "$name: all tests passed before, and nothing has changed since"
    exit 0
fi
ctest --test-dir "$build" --output-on-failure --no-tests=error
echo "$state" > "$build/tests.passed"
