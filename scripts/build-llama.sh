#!/usr/bin/env bash
# build-llama.sh SOURCE [-DFLAG...] [TARGET...]: builds llama.cpp's static libraries (or the named targets),
# with further CMake flags if given, in the per-user cache and prints the build folder on stdout. ggml compiles for this
# processor, so the folder's name carries the processor, the compiler and the flags.
set -euo pipefail
source_tree="$(cd "$1" && pwd)"; shift
more_flags=()
while [[ "${1:-}" == -D* ]]; do more_flags+=("$1"); shift; done
[ $# -gt 0 ] || set -- ggml llama llama-common
cache="${XDG_CACHE_HOME:-$HOME/.cache}/holdfast"

# Tools stay off by default in the target list; they are configured so that bench/ can ask for llama-bench.
flags=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=OFF
       -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
       -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF
       -DLLAMA_LLGUIDANCE=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON "${more_flags[@]}")
key="$({ echo "$source_tree" "${flags[@]}"; ${CXX:-c++} --version | head -n 1 | sed "s,^[^ ]*,c++,"
         grep -m 1 -E '^(flags|Features)' /proc/cpuinfo; } | sha256sum | cut -c1-12)"
build="$cache/llama-build-$key"

mkdir -p "$cache"
exec 9>"$cache/llama-build-$key.lock"
flock 9
if [ ! -f "$build/build.ninja" ]; then
    echo "building llama.cpp from $source_tree (once; about 8 minutes on two cores)" >&2
    cmake -S "$source_tree" -B "$build" -G Ninja "${flags[@]}" >"$build.log" 2>&1 ||
        { tail -n 20 "$build.log" >&2; echo "holdfast: configuring llama.cpp failed, see $build.log" >&2; rm -rf "$build"; exit 1; }
fi
cmake --build "$build" --target "$@" >>"$build.log" 2>&1 ||
    { tail -n 20 "$build.log" >&2; echo "holdfast: building llama.cpp failed, see $build.log" >&2; exit 1; }
echo "$build"
