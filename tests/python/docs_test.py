# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/python.md run as they stand: by the launcher where they call init(), else by themselves."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

from processes import DEADLINE, clean_environment

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "python.md")
RANKS = 3


def programs():
    with open(PAGE, encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)


def run(text, *launcher):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "sum.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run([sys.executable, *launcher, path], env=clean_environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout, done.stderr


class Page(unittest.TestCase):
    def test_programs(self):
        found = programs()
        self.assertGreater(len(found), 5)
        for text in found:
            with self.subTest(program=text):
                launcher = ["-m", "treering.run", "-n", str(RANKS)] if "treering.init(" in text else []
                code, _, errors = run(text, *launcher)
                self.assertEqual((code, errors), (0, ""))

    def test_first_program(self):
        wanted = sorted(f"rank {rank} of 4: [10. 10. 10. 10.]" for rank in range(4))
        for launcher in (["-n", "4"], ["--hosts", "a:2,b:2", "--launcher", "env TREERING_HOSTID={host}"]):
            code, printed, errors = run(programs()[0], "-m", "treering.run", *launcher)
            self.assertEqual((code, sorted(printed.splitlines())), (0, wanted), errors)

    def test_threads(self):
        text = next(text for text in programs() if "treering.threads(" in text)
        self.assertEqual(run(text)[1].replace("np.int64(3)", "3"), "[3, 3, 3]\n")


if __name__ == "__main__":
    unittest.main()
