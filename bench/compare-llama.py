#!/usr/bin/env python3
"""compare-llama.py HOLDFAST [OPTION...]: reading and decoding beside llama.cpp's llama-bench, built from the same source,
in its default configuration and with OpenBLAS. Runs alternate, pinned to the same processors; printed are medians, and
the ratio to the better of the two llama.cpp builds, its minimum and median over the repetitions. All figures go into
a JSON file.

    --models smollm2,llama-1b    the default model, and a file of Llama-3.2-1B's dimensions with random Q4_K weights
    --contexts 4096,16384        long ones take llama.cpp long: 16,384 tokens four minutes a run, 32,768 a quarter of an hour
"""
import argparse
import collections
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import random_llama

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "holdfast"
SOURCE = CACHE / "llama.cpp-0.3.36"
MODELS = {"smollm2": lambda: CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf",
          "llama-1b": lambda: random_llama.write(CACHE / "models" / "random-llama-1b.Q4_K.gguf")}
BUILDS = {"default": [], "openblas": ["-DGGML_BLAS=ON", "-DGGML_BLAS_VENDOR=OpenBLAS"]}
BUDGET = "20%"


def build(name):
    output = subprocess.run([ROOT / "scripts" / "build-llama.sh", SOURCE, *BUILDS[name], "llama-bench"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout
    return pathlib.Path(output.strip()) / "bin" / "llama-bench"


def run(command):
    """What it wrote, and the peak of its resident memory in bytes."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(PIN + [str(word) for word in command], stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if process.returncode != 0:
            sys.exit(f"{command[0]} failed:\n{errors.read()}")
        output.seek(0)
        return output.read(), usage.ru_maxrss * 1024


def llama(program, model, context):
    common = [program, "-m", model, "-t", options.threads, "-r", 1, "-o", "json", "-fa", 1]
    prefill, resident = run([*common, "-p", context, "-n", 0])  # the other run also keeps a copy of the cache
    decode, _ = run([*common, "-p", 0, "-n", options.tokens, "-d", context])
    return {"prefill": json.loads(prefill)[0]["avg_ts"], "decode": json.loads(decode)[0]["avg_ts"],
            "memory": resident - model.stat().st_size}


def holdfast(model, context):
    def measure(budget):
        with tempfile.TemporaryDirectory() as folder:
            figures = pathlib.Path(folder) / "figures.json"
            run([options.program, "bench", "-m", model, "-t", options.threads, "-n", options.tokens, "--contexts", context,
                 "--budgets", budget, "--set", "vnorm=gram", "--json", figures])
            return json.loads(figures.read_text())[0]
    full, small = measure("100%"), measure(BUDGET)
    seconds = context / small["prefill_tokens_per_second"][0]
    return {"prefill": full["prefill_tokens_per_second"][0], "decode": full["decode_tokens_per_second"][0],
            "decode at " + BUDGET: small["decode_tokens_per_second"][0],
            "compression share": small["compression_seconds"][0] / seconds, "memory at " + BUDGET: small["peak_bytes"]}


def table(model, context, rows):
    def median(values):
        return statistics.median(list(values))

    better = [{key: max(row[name][key] for name in options.builds) for key in ("prefill", "decode")} for row in rows]
    print(f"\n{model}, {context} tokens, {options.threads} threads, {len(rows)} runs each, interleaved")
    print(f"{'':<26}" + "".join(f"{'llama.cpp ' + name:>20}" for name in options.builds) + f"{'holdfast':>10}{'ratio: min':>12}{'median':>8}")
    for title, ours, theirs in [("prefill, tokens/s", "prefill", "prefill"), ("decoding, tokens/s", "decode", "decode"),
                                (f"decoding at {BUDGET}, tokens/s", "decode at " + BUDGET, "decode")]:
        ratios = [row["holdfast"][ours] / best[theirs] for row, best in zip(rows, better)]
        print(f"{title:<26}" + "".join(f"{median(row[name][theirs] for row in rows):>20.1f}" for name in options.builds) +
              f"{median(row['holdfast'][ours] for row in rows):>10.1f}{min(ratios):>12.2f}{median(ratios):>8.2f}")
    key = "memory at " + BUDGET
    ratios = [row["holdfast"][key] / min(row[name]["memory"] for name in options.builds) for row in rows]
    print(f"{'peak memory, MiB':<26}" + "".join(f"{median(row[name]['memory'] for row in rows) / 2**20:>20.0f}" for name in options.builds) +
          f"{median(row['holdfast'][key] for row in rows) / 2**20:>10.0f}{max(ratios):>12.2f}{median(ratios):>8.2f}  "
          f"above the weights, holdfast at {BUDGET}; the first ratio is the largest")
    print(f"{'compression':<26}{100 * median(row['holdfast']['compression share'] for row in rows):.1f}% of the prefill")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("-r", "--repetitions", type=int, default=5)
parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
parser.add_argument("-n", "--tokens", type=int, default=32, help="to decode")
parser.add_argument("--models", default="smollm2", type=lambda text: text.split(","))
parser.add_argument("--contexts", default="4096", type=lambda text: [int(word) for word in text.split(",")])
parser.add_argument("--builds", default=",".join(BUILDS), type=lambda text: text.split(","))
parser.add_argument("-o", "--output", default=str(ROOT / "bench" / "results" / f"{datetime.date.today()}.json"))
options = parser.parse_args()
PIN = ["taskset", "-c", f"0-{options.threads - 1}"]
for given, known in [(options.models, MODELS), (options.builds, BUILDS)]:
    for name in given:
        if name not in known:
            parser.error(f"there is no '{name}'; there are {', '.join(known)}")

programs = {name: build(name) for name in options.builds}
results = collections.defaultdict(list)  # by model and context
for name in options.models:
    model = MODELS[name]()
    for context in options.contexts:
        rows = results[f"{name}, {context} tokens"]
        for repetition in range(options.repetitions):
            row = {build_name: llama(program, model, context) for build_name, program in programs.items()}
            row["holdfast"] = holdfast(model, context)
            rows.append(row)
            print(f"{name}, {context} tokens, run {repetition + 1}: " + json.dumps(row), file=sys.stderr)
        table(name, context, rows)
output = pathlib.Path(options.output)
output.parent.mkdir(parents=True, exist_ok=True)
temporary = output.with_suffix(".new")
temporary.write_text(json.dumps({"threads": options.threads, "tokens": options.tokens, "results": results}, indent=1) + "\n")
os.replace(temporary, output)
print(f"\nall figures: {output}")
