#!/usr/bin/env bash
# fuzz.sh BUILD CMAKE-FLAGS...: fuzzes the reader of context files for a minute (FUZZ_SECONDS), from contexts that a
# small model makes.
set -euo pipefail
build="$1"; shift
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DHOLDFAST_TESTS=OFF \
  -DHOLDFAST_SANITIZE=fuzzer -DCMAKE_BUILD_TYPE=RelWithDebInfo "$@" >/dev/null
cmake --build "$build" --target context_file_fuzz fuzz_corpus
cd "$build"
fuzzer="$(sha256sum tests/fuzz/context_file_fuzz)"
if [ "$(cat tests.passed 2>/dev/null)" = "$fuzzer" ]; then
    echo "fuzzer: it found nothing before, and nothing has changed since"
    exit 0
fi
rm -rf corpus found && mkdir corpus found
# This compiler's sanitizer can't run where the kernel spreads addresses widely.
fixed=(); ! setarch -R true 2>/dev/null || fixed=(setarch -R)
"${fixed[@]}" tests/fuzz/fuzz_corpus corpus
"${fixed[@]}" tests/fuzz/context_file_fuzz -max_total_time="${FUZZ_SECONDS:-60}" -max_len=65536 -rss_limit_mb=2048 \
  -timeout=20 -artifact_prefix=found/ corpus 2>fuzz.log ||
    { tail -n 60 fuzz.log; echo "holdfast: the fuzzer found something: $build/found" >&2; exit 1; }
grep DONE fuzz.log
echo "$fuzzer" > tests.passed
