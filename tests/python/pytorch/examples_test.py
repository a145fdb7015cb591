# SPDX-License-Identifier: Apache-2.0
"""The examples. Each compares itself with a single process, and says by its status whether they agree."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from processes import DEADLINE, clean_environment  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "examples")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
RUN = ("-m", "treering.run", "-n")
# The environment of the tests has no installed package, whose backend torch.distributed finds by itself: an import of
# treering.torch, or of what needs it, is in each program.
SAYS = {
    "ddp": r"{ranks} ranks: loss [\d.]+, largest difference to one process \d\.\de[+-]\d\d\n",
    "horovod": r"{ranks} ranks: loss [\d.]+, largest difference to one process \d\.\de[+-]\d\d\n",
    "double_buffer": r"{ranks} ranks, one step late, as fp16: accuracy 0\.\d+; one process 0\.\d+\n",
    "zero": r"({ranks} ranks, stage \d: largest difference to one process \d\.\de[+-]\d\d\n){{3}}",
    "parameter_server": r"{ranks} workers, synchronous: largest difference to one process \d\.\de[+-]\d\d\n"
                        r"{ranks} workers, asynchronous, up to \d steps ahead: accuracy 0\.\d+; one process 0\.\d+\n",
    "large_batch": r"{ranks} ranks, batch 256: accuracy 0\.\d+; one process, batch 16: 0\.\d+\n",
    "pipeline": r"{ranks} ranks, 8 pieces: loss [\d.]+, largest difference to one process \d\.\de[+-]\d\d\n",
}


class Examples(unittest.TestCase):
    def check(self, name, *numbers):
        for ranks in numbers:
            with self.subTest(ranks=ranks):
                launcher = RUN if name == "horovod" else TORCHRUN
                processes = ranks + (name == "parameter_server")  # the server
                done = subprocess.run([sys.executable, *launcher, str(processes), os.path.join(FOLDER, name, "train.py")],
                                      env=clean_environment(OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL, capture_output=True,
                                      text=True, timeout=DEADLINE * 3)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertRegex(done.stdout, "^" + SAYS[name].format(ranks=ranks) + "$")

    def test_ddp(self):
        self.check("ddp", 1, 2, 3)

    def test_horovod(self):
        self.check("horovod", 1, 2, 3)

    def test_double_buffer(self):
        self.check("double_buffer", 2, 3)

    def test_zero(self):
        self.check("zero", 2, 3)

    def test_parameter_server(self):
        self.check("parameter_server", 2, 3)

    def test_large_batch(self):
        self.check("large_batch", 2)

    def test_pipeline(self):
        self.check("pipeline", 1, 2, 3)


if __name__ == "__main__":
    unittest.main()
