#!/usr/bin/env python3
"""context-files.py HOLDFAST [REPETITIONS]: sizes of context files, and what they save in time, for a document of about 7,000
tokens on the default model: the time to an answer's first token from the file against reading the document again."""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
REPETITIONS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
QUESTION = "What is the oldest boat in the harbour called?"
text = (pathlib.Path(__file__).parents[1] / "examples" / "saltmere.txt").read_text(encoding="utf-8")


def ask(*arguments):
    start = time.perf_counter()
    result = subprocess.run([PROGRAM, "ask", *arguments, "-n", "1", "--json", QUESTION], capture_output=True, text=True, check=True)
    wall = time.perf_counter() - start
    return {**json.loads(result.stdout), "wall_seconds": wall}


def median(samples, key):
    return statistics.median(sample[key] for sample in samples)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    document = folder / "document.txt"
    document.write_text((text * 3)[: int(len(text) * 2.67)], encoding="utf-8")
    read = [ask("-f", str(document)) for _ in range(min(3, REPETITIONS))]
    full = read[0]["kv_bytes_full"]
    wall = median(read, "wall_seconds")
    print(f"{read[0]['tokens_read']} tokens; full cache {full / 2**20:.1f} MiB; reading, compressing and the first token: "
          f"{wall:.2f} s (median of {len(read)})\n")
    print("| file | MiB | of the full cache | open, ms | question and first token, ms | whole process, ms | reading again takes |")
    print("|---|---|---|---|---|---|---|")
    for method, budget, kv_type in [("full", None, "f16"), ("layer-defensive", "20%", "f16"), ("layer-defensive", "20%", "q8_0")]:
        book = folder / f"{method}-{kv_type}.hfkv"
        limit = [] if budget is None else ["--budget", budget]
        subprocess.run([PROGRAM, "compress", "-f", document, "--method", method, *limit, "--kv-type", kv_type, "-o", book],
                       check=True, capture_output=True)
        asked = [ask(str(book)) for _ in range(REPETITIONS)]
        whole = median(asked, "wall_seconds")
        print(f"| {method}{' ' + budget if budget else ''}, {kv_type} | {book.stat().st_size / 2**20:.1f} | {book.stat().st_size / full:.1%} | "
              f"{1000 * median(asked, 'open_seconds'):.1f} | {1000 * (median(asked, 'question_seconds') + median(asked, 'decode_seconds')):.0f} | "
              f"{1000 * whole:.0f} | {wall / whole:.1f}x as long |")
