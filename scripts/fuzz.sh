#!/usr/bin/env bash
# fuzz.sh BUILD [SECONDS]: fuzzes the reader of context files, from contexts that a small model makes.
set -euo pipefail
build="$1-fuzz" seconds="${2:-60}"
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DHOLDFAST_TESTS=OFF \
  -DHOLDFAST_SANITIZE=fuzzer -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
cmake --build "$build" --target context_file_fuzz fuzz_corpus
fuzzer="$(sha256sum "$build/tests/fuzz/context_file_fuzz")"
if [ "$(cat "$build/tests.passed" 2>/dev/null)" = "$fuzzer" ]; then
    echo "fuzzer: nothing has changed since it found nothing"
    exit 0
fi
cd "$build"
rm -rf corpus found && mkdir corpus found
tests/fuzz/fuzz_corpus corpus
tests/fuzz/context_file_fuzz -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=20 \
  -artifact_prefix=found/ -print_final_stats=1 corpus 2>fuzz.log ||
    { tail -n 60 fuzz.log; echo "holdfast: the fuzzer found something: $build/found" >&2; exit 1; }
grep -E "number_of_executed_units|DONE" fuzz.log
echo "$fuzzer" > tests.passed
