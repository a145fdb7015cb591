# SPDX-License-Identifier: Apache-2.0
"""treering.horovod finds its job: under treering.run and torchrun, and alone. The programs of docs/horovod.md run as they stand."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import docs_test  # noqa: E402
from processes import DEADLINE, clean_environment  # noqa: E402

PROGRAM = """
import torch
import treering.horovod as hvd
hvd.init()
hvd.init()
sum = hvd.allreduce(torch.ones(3), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()} of {hvd.local_size()}: {sum.tolist()}\\n", end="", flush=True)
hvd.shutdown()
hvd.init()
assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == sum.tolist()
hvd.shutdown()
try:
    hvd.rank()
except ValueError as error:
    print(f"{error}\\n", end="", flush=True)
"""
NOT_INITIALIZED = "treering.horovod is not initialized; call init() first"


def run(text, *launcher, before=(), **variables):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return subprocess.run([*before, sys.executable, *launcher, path], env=clean_environment(OMP_NUM_THREADS="1", **variables), cwd=directory,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE * 2)


class Launchers(unittest.TestCase):
    def check(self, done, ranks):
        self.assertEqual(done.returncode, 0, done.stderr)
        due = [f"rank {rank} of {ranks}, local {rank} of {ranks}: [{ranks}.0, {ranks}.0, {ranks}.0]" for rank in range(ranks)]
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(due + [NOT_INITIALIZED] * ranks), done.stderr)

    def test_treering_run(self):
        self.check(run(PROGRAM, "-m", "treering.run", "-n", "3"), 3)

    def test_torchrun(self):
        self.check(run(PROGRAM, *docs_test.TORCHRUN, "2"), 2)

    def test_alone(self):
        self.check(run(PROGRAM), 1)

    def test_mpirun(self):
        command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        if shutil.which(command[0]) is None:
            self.skipTest(f"{command[0]} is not there")
        self.check(run(PROGRAM, before=command), 2)

    def test_hosts(self):
        """Ranks 0 and 1 are on one host, rank 2 on another."""
        text = """
import os
host = "first" if int(os.environ["RANK"]) < 2 else "second"
os.environ["TREERING_HOSTID"] = host
import treering.horovod as hvd
hvd.init()
print(f"{hvd.rank()}: {hvd.local_rank()} of {hvd.local_size()}, {hvd.cross_rank()} of {hvd.cross_size()}, {hvd.is_homogeneous()}\\n", end="")
"""
        done = run(text, *docs_test.TORCHRUN, "3")
        self.assertEqual(sorted(done.stdout.splitlines()), ["0: 0 of 2, 0 of 2, False", "1: 1 of 2, 0 of 1, False",
                                                            "2: 0 of 1, 1 of 2, False"], done.stderr)

    def test_timeline_by_variable(self):
        """The program does not call shutdown()."""
        text = "import torch\nimport treering.horovod as hvd\nhvd.init()\nhvd.allreduce(torch.ones(3), name='only')\n"
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "timeline.json")
            done = run(text, "-m", "treering.run", "-n", "2", HOROVOD_TIMELINE=path)
            self.assertEqual(done.returncode, 0, done.stderr)
            for name in (path, path + ".1"):
                with open(name, encoding="utf-8") as file:
                    self.assertEqual([event["name"] for event in json.load(file)["traceEvents"]], ["only", "only"])


class Page(unittest.TestCase):
    def test_programs(self):
        page = os.path.join(os.path.dirname(docs_test.PAGE), "horovod.md")
        found = docs_test.programs(page)
        self.assertEqual(len(found), 1)
        for text in found:
            with self.subTest(program=text):
                done = run(text, "-m", "treering.run", "-n", "2")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.count("loss"), 1)


if __name__ == "__main__":
    unittest.main()
