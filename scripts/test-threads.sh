#!/usr/bin/env bash
# test-threads.sh BUILD CMAKE-FLAGS...: sessions in several threads, under the thread sanitizer.
set -euo pipefail
build="$1"; shift
cmake -S . -B "$build" -G Ninja -DHOLDFAST_SANITIZE=thread "$@" >/dev/null
cmake --build "$build" --target session_test
test="$(sha256sum "$build/tests/session_test")"
if [ "$(cat "$build/tests.passed" 2>/dev/null)" = "$test" ]; then
    echo "threads: the tests passed before, and nothing has changed since"
    exit 0
fi
# This compiler's sanitizer can't run where the kernel spreads addresses widely.
fixed=(); ! setarch -R true 2>/dev/null || fixed=(setarch -R)
TSAN_OPTIONS=halt_on_error=1 "${fixed[@]}" "$build/tests/session_test" --gtest_filter='*RunBesideOneAnother' --gtest_brief=1
echo "$test" > "$build/tests.passed"
