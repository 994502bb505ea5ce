#!/usr/bin/env python3
"""cli_test.py HOLDFAST: the command line as its users meet it: answers, refusals, exit codes, interruption."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = CACHE / "holdfast" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
DOCUMENT = "The harbour of Saltmere has one lighthouse. The pass code of the keeper is 4417823. The light is white.\n" * 3


def run(*arguments, input=None):
    return subprocess.run([PROGRAM, *map(str, arguments)], input=input, capture_output=True)


class Cli(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.document = self.write("document.txt", DOCUMENT)

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    # Ends with the test, however that ends.
    def started(self, *arguments, **how):
        process = subprocess.Popen(arguments, **how)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def refused(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, b"")
        message = result.stderr.decode()
        for word in words:
            self.assertIn(word, message)
        self.assertLess(len(message.splitlines()), 5, message)  # a message, not a dump

    # Breaks if a length, budget or repetition is left out or measured twice, the full cache is compressed, or nonsense is measured.
    def test_bench(self):
        figures = self.folder / "figures.json"
        made = run("bench", "--contexts", "64,200", "--budgets", "100%,50%", "-n", "2", "-r", "2", "--json", figures)
        self.assertEqual(made.returncode, 0, made.stderr)
        rows = json.loads(figures.read_text())
        self.assertEqual([(r["context"], r["budget"], r["method"]) for r in rows],
                         [(64, "100%", "full"), (64, "50%", "layer-defensive"), (200, "100%", "full"), (200, "50%", "layer-defensive")])
        for r in rows:
            for name in ["prefill_tokens_per_second", "decode_tokens_per_second"]:
                self.assertEqual([len(r[name]), min(r[name]) > 0], [2, True])
            self.assertEqual(r["beyond_training"], False)
        self.assertLess(rows[3]["kv_bytes"], 0.75 * rows[2]["kv_bytes"])
        self.assertEqual(len(made.stdout.decode().splitlines()), 6)
        for what, wrong in [("--contexts", "0"), ("--contexts", "4x"), ("--budgets", "0%"), ("--method", "magic"), ("--set", "window"), ("-r", "0")]:
            self.refused(run("bench", what, wrong), 2, wrong)
        self.refused(run("bench", "-m", self.document), 1, "document.txt")

    # Breaks if an input that can't be meant is accepted, ends otherwise than with 2, or isn't named.
    def test_usage_errors(self):
        q = "Who is the keeper?"
        for budget in ["0%", "-5%", "101%", "0", "0.2", "much"]:
            self.refused(run("ask", "-f", self.document, f"--budget={budget}", q), 2, budget)
        self.refused(run("ask", "-f", self.document, "--method", "magic", q), 2, "magic", "layer-defensive")
        self.refused(run("ask", q), 2, "--file")
        self.refused(run("ask", "-f", self.document, "-t", "0", q), 2, "0")
        self.refused(run("ask", "-f", self.document, "--method", "full", "--budget", "20%", q), 2, "no effect")
        self.refused(run("ask", "-f", self.document, "--seed", "3", q), 2, "no effect")
        self.refused(run("frobnicate"), 2)
        self.refused(run(), 2)
        self.refused(run("ask", "-f", "-", input=DOCUMENT.encode()), 2, "question")
        self.refused(run("ask", "-f", self.document, "-c", "100000", q), 2, "100000", "8192", "scaling")
        long = self.write("long.txt", "The tide came in and the tide went out again. " * 900)
        self.refused(run("ask", "-f", long, q), 2, "8192")

    # Breaks if a method, its parameters or its profile are taken for something else than they are.
    def test_methods(self):
        q = "Who is the keeper?"
        table = run("methods")
        self.assertEqual(table.returncode, 0)
        for word in ["critical-adakv", "snapkv+mean+critical+ada", "expected-attention", "headkv", "CriticalKV", "first-stage:"]:
            self.assertIn(word, table.stdout.decode())
        for arguments in [("methods", "critical-adakv", "--set", "alpha=0.3"), ("ask", "--explain", "--method", "critical-adakv", "--set", "alpha=0.3"),
                          ("info", "--explain", "--method", "critical-adakv", "--set", "alpha=0.3")]:
            explained = run(*arguments)
            self.assertEqual(explained.returncode, 0, explained.stderr)
            for word in ["scorer", "window=32", "alpha=0.3 (default 0.2)", "vnorm=exact"]:
                self.assertIn(word, explained.stdout.decode())
        for method, setting, *words in [("snapkv", "mass=0.8", "doesn't use mass"), ("snapkv", "window=x", "isn't a value of window"),
                                        ("knorm+critical", "", "makes no sense"), ("full", "window=3", "doesn't use window")]:
            self.refused(run("ask", "-f", self.document, "--method", method, *(["--set", setting] if setting else []), q), 2, *words)
        self.refused(run("methods", "--set", "window=3"), 2, "name of a method")

        for method in ["snapkv", "critical-headkv", "h2o+defensive+critical+ada", "expected-attention"]:
            answer = run("ask", "-f", self.document, "--method", method, "--budget", "70%", "-n", "4", "--json", q)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertEqual(json.loads(answer.stdout)["method"], method)

        foreign = self.write("heads.json", (pathlib.Path(__file__).parent.parent / "profiles" / "SmolLM2-135M-Instruct.Q4_1.json")
                             .read_text().replace('"fingerprint": "', '"fingerprint": "f'))
        self.refused(run("ask", "-f", self.document, "--method", "headkv", "--set", f"profile={foreign}", q), 1, "heads.json", "another model", "profile-heads")
        self.refused(run("ask", "-f", self.document, "--method", "headkv", "--set", "profile=absent.json", q), 1, "absent.json")
        self.refused(run("profile-heads", "-o", self.folder / "no" / "heads.json"), 1, "cannot write")
        self.refused(run("profile-heads", "-o", self.folder / "heads.json", "--prompts", "3"), 2, "20")

    # Breaks if a sample is lost or counted twice, a resumed run repeats or mixes results, or a bad line isn't named.
    def test_eval(self):
        sample = {"task": "keeper", "context": DOCUMENT, "question": "What is the pass code of the keeper?", "answer_prefix": " The pass code is",
                  "answers": ["4417823"], "max_new_tokens": 6, "metric": "string_match_all"}
        other = dict(sample, task="light", question="What colour is the light?", answers=["white", "The light is white"], metric="f1")
        data = self.write("own.jsonl", json.dumps(sample) + "\n\n" + json.dumps(other) + "\n")
        out = self.folder / "results"
        arguments = ["eval", "run", "--data", data, "--out", out, "--methods", "full,snapkv,layer-defensive", "--budgets", "60%,90%"]
        first = run(*arguments)
        self.assertEqual(first.returncode, 0, first.stderr)
        for word in ["2 samples", "question-agnostic", "snapkv 60%", "layer-defensive 90%", "mean of 2"]:
            self.assertIn(word, first.stdout.decode())
        lines = (out / "results.jsonl").read_text().splitlines()
        results = [json.loads(line) for line in lines]
        self.assertEqual(len(results), 2 * 5)
        self.assertEqual({(r["task"], r["method"], r["budget"]) for r in results},
                         {(t, m, b) for t in ["keeper", "light"] for m, b in [("full", "100%"), ("snapkv", "60%"), ("snapkv", "90%"),
                                                                               ("layer-defensive", "60%"), ("layer-defensive", "90%")]})
        self.assertEqual(len(results[0]["kept_by_layer"]), 30)
        self.refused(run(*arguments), 2, "--resume")

        # A kill may leave half a line: resuming drops it and runs that sample alone again, with the same answer.
        (out / "results.jsonl").write_text("\n".join(lines[:7]) + "\n" + lines[7][:40])
        again = run(*arguments, "--resume")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout, first.stdout)
        resumed = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        strip = lambda r: {k: v for k, v in r.items() if not k.endswith("seconds")}
        self.assertEqual([strip(r) for r in resumed], [strip(r) for r in results])
        self.refused(run(*arguments, "--resume", "--question-aware"), 2, "manifest.json")

        # Another answer is another sample, and two don't write at once.
        self.write("own.jsonl", json.dumps(dict(sample, answers=["Nobody"])) + "\n\n" + json.dumps(other) + "\n")
        self.assertEqual(run(*arguments, "--resume").returncode, 0)
        self.assertEqual(len((out / "results.jsonl").read_text().splitlines()), 10 + 5)
        holder = os.open(out, os.O_RDONLY)
        fcntl.flock(holder, fcntl.LOCK_EX)
        self.refused(run(*arguments, "--resume"), 1, "another process")
        os.close(holder)

        for line, *words in [("{", "bad.jsonl:2"), (json.dumps({k: v for k, v in sample.items() if k != "answers"}), "bad.jsonl:2", "answers"),
                             (json.dumps(dict(sample, metric="bleu")), "bad.jsonl:2", "bleu", "rouge_l"), (json.dumps(dict(sample, answers=[])), "bad.jsonl:2"),
                             (json.dumps(dict(sample, max_new_tokens=0)), "bad.jsonl:2"), (json.dumps(dict(sample, max_new_tokens=9000)), "bad.jsonl:2", "8192")]:
            bad = self.write("bad.jsonl", json.dumps(sample) + "\n" + line + "\n")
            self.refused(run("eval", "run", "--data", bad, "--out", self.folder / "bad"), 1, *words)
            self.assertFalse((self.folder / "bad").exists())
        self.refused(run("eval", "run", "--data", self.write("none.jsonl", "\n"), "--out", out), 1, "none.jsonl")
        self.refused(run("eval", "run", "--data", data, "--out", "/proc/none"), 1, "/proc/none")
        self.refused(run("eval", "run", "--data", data, "--out", out, "--methods", "magic"), 2, "magic")

    # Breaks if the tenth sample is dropped because its prompt is the first's, or keeps or answers anything else.
    def test_eval_repeated_prompt(self):
        sample = {"task": "keeper", "context": DOCUMENT, "question": "What is the pass code of the keeper?", "answers": ["4417823"], "max_new_tokens": 4,
                  "metric": "f1"}
        others = [dict(sample, context=f"{i}. " + DOCUMENT) for i in range(8)]
        data = self.write("ten.jsonl", "".join(json.dumps(s) + "\n" for s in [sample, *others, sample]))
        out = self.folder / "ten"
        self.assertEqual(run("eval", "run", "--data", data, "--out", out, "--methods", "layer-defensive", "--budgets", "50%").returncode, 0)
        results = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        self.assertEqual(len(results), 10)
        for name in ["prompt", "kept_by_layer", "answer", "score"]:
            self.assertEqual(results[0][name], results[9][name])
        self.assertNotEqual(results[0]["prompt"], results[1]["prompt"])

    # Breaks if a report's means aren't those of the results, or a folder that isn't one passes.
    def test_report(self):
        sample = {"task": "keeper", "context": DOCUMENT, "question": "What is the pass code of the keeper?", "answer_prefix": " The pass code is",
                  "answers": ["4417823"], "max_new_tokens": 6, "metric": "string_match_all"}
        data, out = self.write("own.jsonl", json.dumps(sample) + "\n"), self.folder / "results"
        self.assertEqual(run("eval", "run", "--data", data, "--out", out, "--methods", "full,snapkv,critical-snapkv", "--budgets", "40%,90%").returncode, 0)
        made = run("report", out)
        self.assertEqual(made.returncode, 0, made.stderr)
        page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
        self.assertIn("Score against budget", text)
        for line in (out / "results.jsonl").read_text().splitlines():
            r = json.loads(line)
            if r["method"] != "full":
                self.assertIn(f"| {r['method']} | {r['budget']} | {r['tokens']} | {r['kept_mean']:.0f} |", text)
        self.assertEqual(page.count("<canvas"), 3)  # the curve, kept shares at two budgets
        self.refused(run("report", self.folder), 1, "manifest.json")
        (out / "results.jsonl").write_text("")
        self.refused(run("report", out), 1, "results.jsonl")

    # Breaks if a dataset gets another's prompt, length or metric, texts aren't split behind the context, or too long ones are refused.
    def test_longbench(self):
        asked = {"narrativeqa": (128, "f1", "Question: {}\n\nAnswer:"), "qasper": (128, "f1", "Question: {}\n\nAnswer:"), "multifieldqa_en": (64, "f1", "Question: {}\nAnswer:"),
                 "hotpotqa": (32, "f1", "Question: {}\nAnswer:"), "2wikimqa": (32, "f1", "Question: {}\nAnswer:"), "musique": (32, "f1", "Question: {}\nAnswer:"),
                 "gov_report": (512, "rouge_l", "Summary:"), "qmsum": (512, "rouge_l", "Query: {}\nAnswer:"), "multi_news": (512, "rouge_l", "Summary:"),
                 "trec": (64, "classification", "\n{}"), "triviaqa": (32, "f1", "\n\n{}"), "samsum": (128, "rouge_l", "\n\n{}"),
                 "passage_count": (32, "count", "The final answer is: "), "passage_retrieval_en": (32, "retrieval", "The answer is: "),
                 "lcc": (64, "code_sim", "Next line of code:\n"), "repobench-p": (64, "code_sim", "{}Next line of code:\n"),
                 "multifieldqa_zh": (64, "f1_zh", "问题：{}\n回答："), "dureader": (128, "rouge_l_zh", "问题：{}\n回答："), "vcsum": (512, "rouge_l_zh", "会议总结："),
                 "lsht": (64, "classification", "\n{}"), "passage_retrieval_zh": (32, "retrieval_zh", "答案是：")}
        context = "The boat came in {input} at noon. " * 30
        answer = lambda name: "段落3" if name == "passage_retrieval_zh" else "Paragraph 3"
        for name in asked:
            published = {"input": f"Who asked {name}?", "context": context, "answers": [answer(name), answer(name) + "."], "length": 9, "dataset": name, "language": "en",
                         "all_classes": ["Paragraph 3", "Other"] if name in ("trec", "lsht") else None, "_id": "1"}
            self.write(f"{name}.jsonl", json.dumps(published) + "\n" + json.dumps(published) + "\n")
        dump = self.folder / "dump.jsonl"
        made = run("eval", "longbench", "--data", self.folder, "--samples", "1", "--dump", dump)
        self.assertEqual(made.returncode, 0, made.stderr)
        samples = {s["task"]: s for s in map(json.loads, dump.read_text().splitlines())}
        self.assertEqual(list(samples), list(asked))
        for name, s in samples.items():
            length, metric, end = asked[name]
            self.assertTrue(s["context"].endswith(context), name)
            self.assertTrue(s["question"].endswith(end.format(f"Who asked {name}?")), (name, s["question"]))
            self.assertEqual((s["max_new_tokens"], s["metric"], s["answers"]), (length, metric, [answer(name), answer(name) + "."]), name)
            self.assertEqual(s.get("chat_template", True), name not in ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"), name)
            self.assertEqual(s.get("first_line", False), name in ("trec", "triviaqa", "samsum", "lsht"), name)
            self.assertEqual(s.get("classes"), ["Paragraph 3", "Other"] if name in ("trec", "lsht") else None)
        self.assertEqual(samples["trec"]["question"], "\nWho asked trec?")

        # 30 lines are more than 256 tokens: the middle goes; and a first line ends with its line.
        out = self.folder / "out"
        tasks = "passage_count,trec,lcc,passage_retrieval_zh"
        ran = run("eval", "longbench", "--data", self.folder, "--tasks", tasks, "--samples", "1", "--out", out, "-c", "256", "--methods", "full,layer-defensive", "--budgets", "50%")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        results = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        self.assertEqual([r["task"] for r in results[::2]], tasks.split(","))
        for r in results:
            self.assertGreater(r["cut_tokens"], 20)
            self.assertLess(r["tokens"] + samples[r["task"]]["max_new_tokens"], 256)
            self.assertEqual(r["chat_template"], r["task"].startswith("passage"))
            if r["task"] == "trec":
                self.assertNotIn("\n", r["answer"])
        bad = json.loads((self.folder / "passage_retrieval_en.jsonl").read_text().splitlines()[0])
        self.write("passage_retrieval_en.jsonl", json.dumps(dict(bad, answers=["the third"])) + "\n")
        self.refused(run("eval", "longbench", "--data", self.folder, "--tasks", "passage_retrieval_en", "--out", self.folder / "bad"), 1, "passage_retrieval_en.jsonl:1", "the third")
        self.write("trec.jsonl", json.dumps({"input": "", "context": "x", "answers": ["y"]}) + "\n")
        self.refused(run("eval", "longbench", "--data", self.folder, "--tasks", "trec", "--dump", dump), 1, "trec.jsonl:1", "all_classes")
        self.refused(run("eval", "longbench", "--data", self.folder, "--tasks", "trek", "--dump", dump), 2, "trek", "narrativeqa")
        self.refused(run("eval", "longbench", "--data", self.folder / "absent", "--tasks", "trec", "--dump", dump), 1, "absent")

    # Breaks if RULER's tasks aren't written as `eval run` reads them, or one that can't be made is silently left out.
    def test_ruler(self):
        words = self.write("words.txt", "".join(a + b + c + d + "\n" for a in "bcdfglmnprst" for b in "aeiou" for c in "bdklmnrstv" for d in "aeo"))
        essay = self.write("essay.txt", "The boats come in with the tide. Nobody counts them. " * 200)
        dump, out = self.folder / "samples.jsonl", self.folder / "ruler"
        common = ["eval", "ruler", "--samples", "1", "--haystack", essay, "--words", words]
        made = run(*common, "--length", "1200", "--dump", dump)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("qa_1 is left out", made.stderr.decode())
        samples = [json.loads(line) for line in dump.read_text().splitlines()]
        self.assertEqual(len(samples), 11)
        ran = run(*common, "--length", "500", "--tasks", "fwe,niah_single_1", "--methods", "full,layer-defensive", "--dump", dump, "--out", out)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("mean of 2", ran.stdout.decode())
        self.assertNotIn("RULER average", ran.stdout.decode())
        again = run("eval", "run", "--data", dump, "--methods", "full,layer-defensive", "--out", self.folder / "again")
        scores = lambda folder: [(r["prompt"], r["method"], r["answer"], r["score"]) for r in map(json.loads, (folder / "results.jsonl").read_text().splitlines())]
        self.assertEqual(scores(self.folder / "again"), scores(out), again.stderr)
        self.refused(run(*common, "--tasks", "niah", "--dump", dump), 2, "niah_single_1")
        self.refused(run(*common), 2, "--out")
        self.refused(run("eval", "ruler", "--length", "9000", "--dump", dump), 2, "8192")

    # Breaks if an analysis changes the answer, leaves out a method, a head or a token, or its page needs something from elsewhere.
    def test_analyze(self):
        q, out = "What is the pass code of the keeper?", self.folder / "analysis"
        plain = run("ask", "-f", self.document, "--method", "full", "-n", "6", "--json", q)
        answer = json.loads(plain.stdout)["answer"]
        common = ["-f", self.document, "--out", out, "--budgets", "50%"]
        for name, methods in [("perturbation", ["snapkv", "critical-snapkv"]), ("fragility", ["snapkv+mean+joint", "snapkv+worst-case+joint"])]:
            made = run("analyze", name, *common, "-q", q, "-n", "6", "--methods", "full," + ",".join(methods))
            self.assertEqual(made.returncode, 0, made.stderr)
            found = json.loads((out / f"{name}.json").read_text())
            self.assertEqual(found["answer"], answer)
            self.assertEqual([m["method"] for m in found["methods"]], [m + " 50%" for m in methods])
            for m in found["methods"]:
                for table in m["heads"].values():
                    self.assertEqual([len(row) for row in table], [9] * 30)
            page = (out / f"{name}.html").read_text()
            self.assertIn(answer.strip(), page)
            self.assertEqual(page.count("<figure>"), 2)
            self.assertFalse(re.search(r'(src|href)=|@import|url\(', page[:page.index("<script>")]))
        self.assertIn("heads_lower_than_without_critical", json.loads((out / "perturbation.json").read_text())["methods"][1])
        made = run("analyze", "tokens", *common, "--methods", "streaming")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertNotIn("\033", made.stdout.decode())
        found = json.loads((out / "tokens.json").read_text())
        self.assertIn(DOCUMENT, "".join(found["tokens"]))
        kept = found["methods"][0]["kept_by"]
        self.assertEqual(set(kept), {0, 90})  # every head the same tokens
        self.assertEqual(kept[0], 90)
        self.assertLessEqual(abs(sum(kept) / 90 - len(kept) / 2), 1)
        self.assertIn("90 of 90 heads", (out / "tokens.html").read_text())
        # On a terminal in colours: the strongest where every head keeps a token.
        master, slave = pty.openpty()
        with subprocess.Popen([PROGRAM, "analyze", "tokens", *map(str, common), "--methods", "streaming"], stdout=slave, stderr=subprocess.DEVNULL) as shown:
            os.close(slave)
            output = b""
            try:
                while part := os.read(master, 4096):
                    output += part
            except OSError:  # how a terminal's end reads
                pass
        os.close(master)
        self.assertEqual(shown.returncode, 0)
        self.assertIn(b"\033[38;5;255;48;5;21m", output)
        self.refused(run("analyze", "perturbation", *common), 2, "--question")
        self.refused(run("analyze", "fragility", *common, "-q", q, "--methods", "full"), 2, "--methods")
        self.refused(run("analyze", "tokens", "-f", self.document, "--out", "/proc/none"), 1, "/proc/none")

    # Breaks if a saved context answers differently from one that was just read, doesn't find its model, or takes options that
    # can't have an effect on it any more.
    def test_context_files(self):
        q, book = "What is the pass code of the keeper?", self.folder / "book.hfkv"
        read = run("ask", "-f", self.document, "--budget", "40%", "-n", "12", q)
        made = run("compress", "-f", self.document, "--budget", "40%", "-o", book)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("layer-defensive at 40%", made.stdout.decode())
        before = book.read_bytes()
        asked = run("ask", book, "-n", "12", q)
        self.assertEqual((asked.returncode, asked.stdout), (0, read.stdout), asked.stderr)
        self.assertIn("opened", asked.stderr.decode())
        two = run("ask", book, "-n", "12", q, "What colour is the light?", "--json")
        first, second = [json.loads(line) for line in two.stdout.splitlines()]
        self.assertEqual(first["answer"] + "\n", read.stdout.decode())
        self.assertEqual((second["method"], second["budget"]), ("layer-defensive", "40%"))
        self.assertEqual(book.read_bytes(), before)
        info = run("info", book).stdout.decode()
        for word in ["40%", str(self.document), "SmolLM2-135M", str(first["tokens_read"]), "window=32", "   29: "]:
            self.assertIn(word, info)
        small = self.folder / "small.hfkv"
        run("compress", "-f", self.document, "--method", "full", "-o", small, "--kv-type", "q8_0")
        self.assertIn(b"4417823", run("ask", small, "-n", "16", q).stdout)
        self.refused(run("ask", book, "--budget", "10%", q), 2, "--budget", "book.hfkv")
        self.refused(run("ask", book, "-f", self.document, q), 2, "--file")
        self.refused(run("ask", self.folder / "absent.hfkv", q), 1, "absent.hfkv")
        self.refused(run("ask", self.write("cut.hfkv", before[:-100]), q), 1, "cut.hfkv")
        self.refused(run("ask", book, "-m", self.document, q), 1, "not a GGUF")
        self.refused(run("info", self.document), 1, "document.txt", "holdfast compress")
        self.refused(run("compress", "-f", self.document, "-o", self.folder / "book.txt"), 2, ".hfkv")
        self.refused(run("compress", "-f", self.document, "-o", self.folder / "none" / "book.hfkv"), 1, "none")
        self.refused(run("compress", "-f", self.document, "-o", book, "--kv-type", "q4"), 2, "q4", "q8_0")

    # Breaks if turns don't see one another, a budget isn't kept, or a saved conversation isn't the one that was had.
    def test_chat(self):
        book, talk = self.folder / "book.hfkv", self.folder / "talk.hfkv"
        run("compress", "-f", self.document, "--method", "full", "-o", book)
        lines = ["What is the pass code of the keeper?", "/stats", "", "/budget 64", "What did I ask?", f"/save {talk}", "/exit", "x"]
        first = run("chat", book, "-n", "12", input="\n".join(lines).encode())
        self.assertEqual(first.returncode, 0, first.stderr)
        alone = run("ask", book, "-n", "12", lines[0]).stdout
        self.assertTrue(first.stdout.startswith(alone) and first.stdout != alone, first.stdout)
        said = first.stderr.decode()
        self.assertIn("budget    none", said)
        self.assertIn("64 by layer-defensive; 64.0 tokens a head", said)
        self.assertIn("of 1 turns", said)
        info = run("info", talk).stdout.decode()
        self.assertIn("layer-defensive at 64", info)
        self.assertIn("conversation", info)
        again = [run("chat", talk, "-n", "12", input=b"And the light?\n").stdout for _ in range(2)]
        self.assertEqual(again[0], again[1])
        cleared = run("chat", book, "-n", "12", input=b"Why?\n/clear\nWhat is the pass code of the keeper?\n")
        self.assertTrue(cleared.stdout.endswith(b"\n" + alone), cleared.stdout)
        self.assertTrue(run("chat", "-n", "5", input=b"Hello\n").stdout.strip())
        for line, word in [(b"/what\n", b"/help"), (b"/budget 0\n", b"0"), (b"/save x\n", b".hfkv")]:
            wrong = run("chat", book, input=line)
            self.assertEqual((wrong.returncode, wrong.stdout), (2, b""), line)
            self.assertIn(word, wrong.stderr)
        self.refused(run("chat", book, "--method", "h2o", "--budget", "64"), 2, "h2o", "layer-defensive")

    # Breaks if a context isn't compressed further, or the request isn't understood as written.
    def test_recompress(self):
        book, less = self.folder / "book.hfkv", self.folder / "less.hfkv"
        run("compress", "-f", self.document, "--budget", "90%", "-o", book)
        made = run("compress", "--recompress", book, "--budget", "60%", "-o", less)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("layer-defensive at 60%", made.stdout.decode())
        self.assertLess(less.stat().st_size, book.stat().st_size)
        self.assertIn(str(self.document), run("info", less).stdout.decode())
        self.refused(run("compress", "--recompress", book, "-f", self.document, "-o", less), 2, "--recompress")
        self.refused(run("compress", "-o", less), 2, "--file")
        self.refused(run("compress", "--recompress", book, "--method", "expected-attention", "-o", less), 2, "expected-attention")
        self.refused(run("compress", "--recompress", book, "--method", "full", "-o", less), 2, "full")
        self.refused(run("compress", "--recompress", self.document, "-o", less), 1, "document.txt")

    # Breaks if a file's model that has moved isn't said where to look for.
    def test_moved_model(self):
        model, book = self.folder / "moved.gguf", self.folder / "book.hfkv"
        model.write_bytes(MODEL.read_bytes())
        run("compress", "-m", model, "-f", self.document, "-o", book)
        model.unlink()
        self.refused(run("ask", book, "Why?"), 1, "moved.gguf", "-m")
        self.assertEqual(run("ask", book, "-m", MODEL, "-n", "3", "Why?").returncode, 0)

    # Breaks if lines can't be edited, history is lost, or Ctrl-C costs the conversation.
    def test_chat_on_a_terminal(self):
        book = self.folder / "book.hfkv"
        run("compress", "-f", self.document, "--method", "full", "-o", book)
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder), "TERM": "xterm"}
        parent, child = pty.openpty()
        process = self.started(PROGRAM, "chat", book, "-n", "2000", stdin=child, stdout=child, stderr=child,
                                   env=environment, start_new_session=True,
                                   preexec_fn=lambda: fcntl.ioctl(0, 0x540E, 0))  # its controlling terminal
        os.close(child)
        seen = b""

        def until(pattern, seconds=120):
            nonlocal seen
            end = time.monotonic() + seconds
            while not (found := re.search(pattern, seen, re.DOTALL)):
                self.assertLess(time.monotonic(), end, (pattern, seen))
                if select.select([parent], [], [], 0.2)[0]:
                    seen += os.read(parent, 4096)
            seen = seen[found.end():]

        prompt = rb".*\n> "  # the next one: lines end with a break, answers too
        until(rb"/help lists commands.*> ")
        os.write(parent, b"/stazs\x7f\x7fts\n")  # mended with backspaces
        until(rb"of 0 turns" + prompt)
        os.write(parent, b"\x1b[A\n")  # the line before, once more
        until(rb"of 0 turns" + prompt)
        os.write(parent, "half a question, \u00e9".encode())
        until("question, \u00e9".encode())
        os.write(parent, b"\x03")
        until(rb"\n> ")
        os.write(parent, b"/nothing\n")
        until(rb"no command '/nothing'" + prompt)
        os.write(parent, b"Write a very long story about the sea, a storm and a ship.\n")
        until(rb"a ship.\r\n.{20}")
        os.write(parent, b"\x03")
        until(rb"\n> ")
        os.write(parent, b"/stats\n")
        until(rb"of 0 turns" + prompt)  # not counted, as it was stopped
        for _ in range(20):  # what comes before the line editor does is lost
            os.write(parent, b"\x04")
            time.sleep(0.5)
            if process.poll() is not None:
                break
        self.assertEqual(process.returncode, 0)
        os.close(parent)
        history = self.folder / "holdfast" / "chat-history"
        self.assertEqual(history.stat().st_mode & 0o77, 0)
        self.assertIn("/nothing", history.read_text())

    # Breaks if a bad file crashes, passes, or isn't named.
    def test_failures(self):
        q = "Who is the keeper?"
        self.refused(run("ask", "-f", self.folder / "absent.txt", q), 1, "absent.txt")
        self.refused(run("ask", "-f", self.folder, q), 1, "directory")
        self.refused(run("ask", "-f", self.write("empty.txt", " \n"), q), 1, "empty.txt")
        self.refused(run("ask", "-f", self.document, "-m", self.folder / "absent.gguf", q), 1, "absent.gguf")
        self.refused(run("ask", "-f", self.document, "-m", self.document, q), 1, "not a GGUF")
        self.refused(run("ask", "-f", self.document, "-m", self.folder, q), 1, "regular file")
        self.refused(run("ask", "-f", self.document, "--questions", self.folder / "absent", q), 1, "absent")

    # Breaks if a truncated model is read beyond its end, wherever the cut is.
    def test_truncated_models(self):
        whole = MODEL.read_bytes()
        for size in [3, 4, 8, 24, 1000, 100_000, 1_700_000, 50_000_000, len(whole) - 1]:
            cut = self.write("cut.gguf", whole[:size])
            self.refused(run("info", "-m", cut), 1, "cut.gguf")

    # Breaks if an unknown architecture isn't named with the list of known ones, or a tensor is ignored.
    def test_unsupported_models(self):
        whole = MODEL.read_bytes()
        name = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5)
        other = self.write("other.gguf", whole.replace(name + b"llama", name + b"mamba", 1))
        self.refused(run("info", "-m", other), 1, "mamba", "llama")
        odd = self.write("odd.gguf", whole.replace(b"blk.3.attn_q.weight", b"blk.3.attn_z.weight", 1))
        self.refused(run("info", "-m", odd), 1, "blk.3.attn_q.weight")

    # Breaks if answers differ between runs, formats or ways to hand over documents and questions.
    def test_answers(self):
        q = "What is the pass code of the keeper?"
        plain = run("ask", "-f", self.document, "--budget", "50%", "-n", "16", q)
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertIn(b"4417823", plain.stdout)
        summary = plain.stderr.decode()
        for word in ["read ", "kept ", "KV cache", "memory", "answered", "question-agnostic"]:
            self.assertIn(word, summary)
        self.assertNotIn("\r", summary)  # progress is for terminals

        questions = self.write("questions.txt", f"{q}\n\nWhat colour is the light?\n")
        listed = run("ask", "-f", "-", "--budget", "50%", "-n", "16", "--json", "--questions", questions, input=DOCUMENT.encode())
        self.assertEqual(listed.returncode, 0, listed.stderr)
        objects = [json.loads(line) for line in listed.stdout.splitlines()]
        self.assertEqual([o["question"] for o in objects], [q, "What colour is the light?"])
        self.assertEqual(objects[0]["answer"], plain.stdout.decode().removesuffix("\n"))
        self.assertEqual(objects[0]["tokens_read"], objects[1]["tokens_read"])
        self.assertFalse(objects[0]["question_aware"])
        for key in ["kv_bytes", "kv_bytes_full", "peak_bytes", "prefill_seconds", "decode_tokens_per_second"]:
            self.assertGreater(objects[0][key], 0, key)

        # A question doesn't see the one before it.
        alone = run("ask", "-f", self.document, "--budget", "50%", "-n", "16", "What colour is the light?")
        self.assertEqual(alone.stdout.decode().removesuffix("\n"), objects[1]["answer"])

        aware = run("ask", "-f", self.document, "--budget", "50%", "-n", "16", "--question-aware", "--json", q)
        self.assertIn("question-aware", aware.stderr.decode())
        found = json.loads(aware.stdout)
        self.assertTrue(found["question_aware"])
        self.assertGreater(found["tokens_read"], objects[0]["tokens_read"])  # the question is read with the document
        self.assertIn("4417823", found["answer"])

    # Breaks if a document can open a turn, or bytes that aren't UTF-8 are refused or printed.
    def test_odd_documents(self):
        def read(document):
            result = run("ask", "-f", self.write("odd.txt", document), "-n", "8", "--json", "What is this?")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout.decode("utf-8")), result.stderr.decode()

        base, _ = read("It is a test.")
        control, _ = read("It is a test.<|im_end|>")
        self.assertGreaterEqual(control["tokens_read"], base["tokens_read"] + 4)  # read as its characters
        binary, warning = read(b"It is a test.\xff\xfe\x80")
        self.assertIn("UTF-8", warning)
        self.assertGreaterEqual(binary["tokens_read"], base["tokens_read"] + 1)

    # Breaks if a budget that can't be applied as written isn't explained.
    def test_notes(self):
        short = run("ask", "-f", self.write("short.txt", "It rains."), "--budget", "10%", "-n", "4", "--json", "Why?")
        self.assertIn("kept whole", json.loads(short.stdout)["note"])
        small = run("ask", "-f", self.document, "--budget", "5", "-n", "4", "Why?")
        self.assertRegex(small.stderr.decode(), r"smaller than the 32 tokens .* last 5")

    # Breaks if info leaves a part of the plan out, or the budget changes nothing.
    def test_info(self):
        def kept(budget):
            result = run("info", "--budget", budget, "-c", "4096")
            self.assertEqual(result.returncode, 0, result.stderr)
            text = result.stdout.decode()
            for word in ["llama: 30 layers", "9 query heads, 3 KV heads", "weights, mapped", "hidden states", "one layer's scratch", "KV cache, full"]:
                self.assertIn(word, text)
            return float(re.search(r"KV cache at the budget\s+([\d.]+) MiB", text)[1])

        self.assertAlmostEqual(kept("50%"), 45.0, delta=0.1)
        self.assertAlmostEqual(kept("1024"), 22.5, delta=0.1)

    # Breaks if Ctrl-C takes longer than a second while reading, or the exit code doesn't say so.
    def test_interrupt(self):
        long = self.write("long.txt", "The tide came in and the tide went out again. " * 600)
        process = subprocess.Popen([PROGRAM, "ask", "-f", long, "Why?"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.5)
        self.assertIsNone(process.poll(), "it ended before it could be interrupted")
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=20)
        if "sanitize" not in PROGRAM:
            self.assertLess(time.monotonic() - start, 1.0)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"interrupted", message)

    # Breaks if the forced instruction set isn't used, or an unknown one passes.
    def test_simd_choice(self):
        environment = dict(os.environ, HOLDFAST_SIMD="SCALAR")
        result = subprocess.run([PROGRAM, "info"], env=environment, capture_output=True)
        self.assertIn(b"SCALAR", result.stdout)
        environment["HOLDFAST_SIMD"] = "ABACUS"
        self.refused(subprocess.run([PROGRAM, "info"], env=environment, capture_output=True), 2, "ABACUS", "SCALAR")


unittest.main()
