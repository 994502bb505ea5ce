#!/usr/bin/env python3
"""demo.py HOLDFAST: reads examples/saltmere.txt, asks three questions with the full cache and in 20% of it,
and prints answers, memory and speed. Fails if fewer than two of three answers are right either way."""
import json
import pathlib
import subprocess
import sys

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "examples" / "saltmere.txt"
QUESTIONS = {  # and what a right answer contains
    "What is the oldest boat in the harbour called?": "patient margaret",
    "Who is the director of the rope works?": "helena marsh",
    "In which room does the trust meet?": "upper room of the pilot inn",
}
RUNS = {"full cache": ["--method", "full"], "layer-defensive, 20%": ["--method", "layer-defensive", "--budget", "20%"]}


def ask(program, options):
    # One question per process would read the document three times; one process answers all three.
    command = [program, "ask", "-f", str(DOCUMENT), "-n", "24", "--json", *options, *QUESTIONS]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def main():
    program = sys.argv[1]
    good = True
    rows = []
    for name, options in RUNS.items():
        answers = ask(program, options)
        right = 0
        print(f"\n{name}")
        for answer in answers:
            hit = QUESTIONS[answer["question"]] in answer["answer"].lower()
            right += hit
            text = " ".join(answer["answer"].split())
            print(f"  {answer['question']:<47} {'right' if hit else 'wrong'}  {text}")
        good = good and right >= 2
        first = answers[0]
        tokens = sum(a["answer_tokens"] - 1 for a in answers)
        seconds = sum(a["decode_seconds"] for a in answers)
        rows.append((name, f"{right} of {len(answers)}", f"{first['kv_bytes'] / 2**20:.1f} MiB", f"{first['peak_bytes'] / 2**20:.1f} MiB",
                     f"{first['prefill_tokens_per_second']:.0f}", f"{tokens / seconds:.0f}"))
    print(f"\n{first['tokens_read']} tokens of {DOCUMENT.name}, {first['model']}")
    header = ("", "right", "KV cache", "peak memory", "prefill tokens/s", "decode tokens/s")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  " + "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))))
    print("\npeak memory: while reading, above the weights")
    if not good:
        sys.exit("holdfast: fewer than two of three answers are right")


main()
