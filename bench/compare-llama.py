#!/usr/bin/env python3
"""compare-llama.py HOLDFAST [-r REPETITIONS]: prefill and decoding of the default model with the full cache, beside
llama.cpp's llama-bench, built from the same source with the same flags. Runs alternate; printed are medians and
the ratio's minimum and median over the repetitions."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "holdfast"
MODEL = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE = CACHE / "llama.cpp-0.3.36"


def llama_bench(threads, depth, decode):
    def rate(arguments):
        output = subprocess.run([BENCH, "-m", MODEL, "-t", str(threads), "-r", "1", "-o", "json", "-fa", "1", *arguments],
                                check=True, capture_output=True, text=True).stdout
        return json.loads(output)[0]["avg_ts"]
    return rate(["-p", str(depth), "-n", "0"]), rate(["-p", "0", "-n", str(decode), "-d", str(depth)])


def holdfast(program, threads, depth, decode):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as document:
        # Words of one token each, so that the document has as many tokens as words; the chat prompt adds about 30.
        document.write(" the tide came in and went out" * (depth // 7))
        document.flush()
        output = subprocess.run([program, "ask", "-f", document.name, "-t", str(threads), "--method", "full", "--json", "--temp", "1",
                                 "-n", str(decode), "Describe the tide in a long story, please."], check=True, capture_output=True, text=True).stdout
    answer = json.loads(output)
    return answer["prefill_tokens_per_second"], answer["decode_tokens_per_second"], answer["tokens_read"], answer["answer_tokens"]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("program")
parser.add_argument("-r", "--repetitions", type=int, default=5)
parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
parser.add_argument("-d", "--depth", type=int, default=2048)
parser.add_argument("-n", "--decode", type=int, default=64)
arguments = parser.parse_args()

build = subprocess.run([ROOT / "scripts" / "build-llama.sh", SOURCE, "llama-bench"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
BENCH = pathlib.Path(build) / "bin" / "llama-bench"

rows = []
for repetition in range(arguments.repetitions):
    theirs = llama_bench(arguments.threads, arguments.depth, arguments.decode)
    ours = holdfast(arguments.program, arguments.threads, arguments.depth, arguments.decode)
    rows.append((theirs, ours))
    print(f"run {repetition + 1}: llama.cpp {theirs[0]:.0f} and {theirs[1]:.1f}, holdfast {ours[0]:.0f} and {ours[1]:.1f} tokens/s "
          f"({ours[2]} read, {ours[3]} said)", file=sys.stderr)

print(f"{arguments.depth} tokens, {arguments.threads} threads, full cache, {arguments.repetitions} runs each, interleaved")
print(f"{'':<28}{'llama.cpp':>12}{'holdfast':>12}{'ratio: min':>14}{'median':>9}")
for index, name in enumerate(["prefill, tokens/s", "decode at depth, tokens/s"]):
    ratios = [ours[index] / theirs[index] for theirs, ours in rows]
    print(f"{name:<28}{statistics.median(t[index] for t, _ in rows):>12.1f}{statistics.median(o[index] for _, o in rows):>12.1f}"
          f"{min(ratios):>14.2f}{statistics.median(ratios):>9.2f}")
