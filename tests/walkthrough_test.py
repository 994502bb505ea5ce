#!/usr/bin/env python3
"""walkthrough_test.py HOLDFAST: runs the commands of docs/contexts.md. Breaks if one fails, or doesn't say what the page
shows: each line of the page, numbers aside, must begin a line of the output, in order (answers,
which begin with "The ", may differ on other processors)."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[1]


def masked(line):
    return re.sub(r"[\d.]+", "#", " ".join(line.split()))


class Walkthrough(unittest.TestCase):
    def test_contexts(self):
        page = (ROOT / "docs" / "contexts.md").read_text(encoding="utf-8")
        steps = []
        for line in re.findall(r"(?m)^    (.*)$", page):
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
        self.assertGreater(len(steps), 5)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        shutil.copy(ROOT / "examples" / "saltmere.txt", folder.name)
        environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
        for command, shown in steps:
            result = subprocess.run(["bash", "-c", command], cwd=folder.name, env=environment, capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, command + result.stderr)
            output = iter(masked(line) for line in (result.stdout + result.stderr).splitlines())
            for line in shown:
                if line.startswith("The "):  # an answer
                    self.assertTrue(result.stdout.strip(), command)
                    continue
                self.assertTrue(any(real.startswith(masked(line)) for real in output),
                                f"{command}\n{line}\n---\n{result.stdout}{result.stderr}")


if __name__ == "__main__":
    unittest.main()
