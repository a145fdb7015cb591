# SPDX-License-Identifier: Apache-2.0
"""The examples that need NumPy alone. Each compares itself with a single process, and says by its status whether they agree."""
import os
import subprocess
import sys
import unittest

from processes import DEADLINE, clean_environment

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")


def run(name, *arguments, launcher=()):
    return subprocess.run([sys.executable, *launcher, os.path.join(FOLDER, name, "train.py"), *map(str, arguments)],
                          env=clean_environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=DEADLINE * 2)


class Mirrored(unittest.TestCase):
    def test_replicas(self):
        for replicas in (1, 4):
            done = run("mirrored", replicas)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, rf"^{replicas} replicas: \d+% of a batch right, largest difference to one replica \d")

    def test_a_number_that_does_not_divide_the_batch(self):
        done = run("mirrored", 5)
        self.assertEqual((done.returncode, done.stderr), (1, "5 replicas: give a number that divides 48\n"))


class DistributedArray(unittest.TestCase):
    def test_ranks(self):
        for ranks in (1, 2, 5):
            done = run("distributed_array", launcher=("-m", "treering.run", "-n", str(ranks)))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, rf"^{ranks} ranks: loss 0\.00\d+, largest difference to one process \d\.\de[+-]\d\d\n$")


if __name__ == "__main__":
    unittest.main()
