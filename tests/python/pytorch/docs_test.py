# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/pytorch.md run as they stand, under torchrun."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from processes import DEADLINE, clean_environment  # noqa: E402

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "pytorch.md")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
# The environment of the tests has the package in a folder, and no installation that torch.distributed finds by itself.
BEGIN = "import treering.torch\n"


def programs(page=PAGE):
    with open(page, encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)


def run(text, ranks):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(BEGIN + text)
        return subprocess.run([sys.executable, *TORCHRUN, str(ranks), path], env=clean_environment(OMP_NUM_THREADS="1"),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE * 2)


class Page(unittest.TestCase):
    def test_programs(self):
        found = programs()
        self.assertGreater(len(found), 1)
        for text in found:
            with self.subTest(program=text):
                done = run(text, 2)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_first_program(self):
        done = run(programs()[0], 4)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"rank {rank} of 4: [10.0, 10.0, 10.0, 10.0]" for rank in range(4)],
                         done.stderr)


if __name__ == "__main__":
    unittest.main()
