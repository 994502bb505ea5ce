#!/usr/bin/env python3
"""install_test.py BUILD: what cmake --install puts somewhere: the library as other programs build on it,
completions as shells use them, manual pages."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = CACHE / "holdfast" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
DOCUMENT = "The harbour of Saltmere has one lighthouse. The name of the keeper is Ottoline Finch. The light is white.\n" * 3
QUESTION = "What is the name of the keeper?"


def run(*arguments, **how):
    result = subprocess.run([*map(str, arguments)], capture_output=True, text=True, **how)
    if result.returncode != 0:
        raise AssertionError(f"{arguments}: {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.prefix = cls.folder / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.program = cls.prefix / "bin" / "holdfast"
        (cls.folder / "document.txt").write_text(DOCUMENT)

    def build(self, example):
        folder = self.folder / example
        run("cmake", "-S", ROOT / "examples" / example, "-B", folder, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", folder)
        return folder / example

    # Breaks if a header lacks something, a symbol isn't exported, or the package doesn't find the library.
    def test_embed(self):
        program = self.build("embed")
        context = self.folder / "embedded.hfkv"
        questions = [QUESTION, "What colour is the light?"]
        first = run(program, MODEL, self.folder / "document.txt", context, *questions)
        self.assertRegex(first, r"\d+ tokens, \d+ bytes")
        self.assertIn(QUESTION, first)
        self.assertEqual(run(program, MODEL, "nowhere.txt", context, *questions), first)

    # Breaks if C can't use the header, or an error doesn't reach it.
    def test_embed_c(self):
        program = self.build("embed-c")
        context = self.folder / "c.hfkv"
        run(self.program, "compress", "-f", self.folder / "document.txt", "--budget", "70%", "-o", context)
        text = run(program, MODEL, context, QUESTION)
        self.assertRegex(text, r"kept of \d+ tokens by layer:( \d+){30}\n")
        asked = run(self.program, "ask", context, "-n", 32, QUESTION)
        self.assertEqual(text.split("\n", 1)[1], asked)
        wrong = subprocess.run([program, MODEL, self.folder / "document.txt", QUESTION], capture_output=True, text=True)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("no context file", wrong.stderr)

    # Breaks if the library shows what would clash with a user's own llama.cpp.
    def test_symbols(self):
        names = run("nm", "-D", "--defined-only", "-C", self.prefix / "lib" / "libholdfast.so") if (
            self.prefix / "lib" / "libholdfast.so").exists() else run(
            "nm", "-D", "--defined-only", "-C", *self.prefix.glob("lib/*/libholdfast.so"))
        self.assertIn("holdfast_session_ask", names)
        self.assertIn("holdfast::Session::ask", names)
        self.assertNotRegex(names, r" (ggml|llama|common|gguf)_")
        self.assertNotIn("holdfast::GgufModel", names)

    # Breaks if completions lack a command or an option, or a shell can't read them.
    def test_bash(self):
        script = self.prefix / "share/bash-completion/completions/holdfast"

        def complete(*words):
            line = " ".join(map(repr, words))
            return set(run("bash", "-c", f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _holdfast; "
                                         'printf "%s\\n" "${COMPREPLY[@]}"').split())

        self.assertEqual(complete("holdfast", "an"), {"analyze"})
        self.assertEqual(complete("holdfast", "analyze", "fr"), {"fragility"})
        self.assertEqual(complete("holdfast", "ask", "--bu"), {"--budget"})
        self.assertIn("layer-defensive", complete("holdfast", "ask", "-f", "x", "--method", "layer-"))
        self.assertEqual(complete("holdfast", "compress", "--kv-type", ""), {"f16", "q8_0"})
        self.assertIn("CMakeLists.txt", set(run("bash", "-c", f"source {script}; COMP_WORDS=(holdfast ask -f CMake); "
                                                "COMP_CWORD=3; _holdfast; echo ${COMPREPLY[@]}", cwd=ROOT).split()))

    def test_fish(self):
        script = self.prefix / "share/fish/vendor_completions.d/holdfast.fish"

        def complete(line):
            home = {**os.environ, "HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)}
            text = run("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'", env=home)
            return {entry.split("\t")[0] for entry in text.splitlines()}

        self.assertEqual(complete("holdfast an"), {"analyze"})
        self.assertEqual(complete("holdfast analyze fr"), {"fragility"})
        self.assertEqual(complete("holdfast ask --bu"), {"--budget"})
        self.assertIn("layer-defensive", complete("holdfast ask --method layer-"))

    def test_zsh(self):
        script = self.prefix / "share/zsh/vendor-completions/_holdfast"
        run("zsh", "-n", script)
        # Without a line editor _arguments can't be asked; what it would be told is checked.
        text = run("zsh", "-f", "-c", f"compdef() {{ }}; _arguments() {{ print -rl -- $@; state=command }}; "
                                      f"_describe() {{ print -rl -- ${{(P)2}} }}; source {script}; _holdfast_ask")
        self.assertIn("*--budget[", text)
        self.assertRegex(text, r"\*--method\[[^\n]*\(full snapkv[^\n]*layer-defensive\)")
        top = run("zsh", "-f", "-c", f"_arguments() {{ state=command }}; _describe() {{ print -rl -- ${{(P)2}} }}; source {script}")
        self.assertRegex(top, r"(?m)^compress:Read documents")

    # Breaks if a command has no page, a page lacks an option that --help lists, or isn't roff.
    def test_manual_pages(self):
        pages = {page.stem: page for page in (self.prefix / "share/man/man1").glob("*.1")}
        commands = re.findall(r"(?m)^  ([a-z-]+) ", run(self.program, "--help").split("Subcommands:")[1])
        self.assertGreater(len(commands), 8)
        for command in commands:
            text = pages[f"holdfast-{command}"].read_text().replace("\\-", "-")
            for option in re.findall(r"--[a-z-]+", run(self.program, command, "--help")):
                self.assertIn(option, text, command)
        self.assertIn("holdfast-analyze-tokens", pages)
        for page in pages.values():
            lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True).stdout
            serious = [line for line in lint.splitlines() if "missing date" not in line]
            self.assertEqual(serious, [], page)


if __name__ == "__main__":
    unittest.main()
