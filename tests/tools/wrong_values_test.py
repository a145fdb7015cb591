# SPDX-License-Identifier: Apache-2.0
"""Wrong results of an allreduce are counted by allreduce-perf, and are its exit status; so are calls that fail.

usage: wrong_values_test.py ALLREDUCE_PERF SHORT_ALLREDUCE     (on GPU memory too where FAKE_CUDA_DRIVER is set)
"""
import os
import signal
import subprocess
import sys
import unittest

PERF, SHORT = sys.argv[1:]
DRIVER = os.environ.get("FAKE_CUDA_DRIVER")


def run(*words, wrong, **variables):
    environment = os.environ | ({"LD_PRELOAD": SHORT} if wrong else {}) | variables
    if DRIVER:
        environment |= {"TREERING_CUDA_DRIVER": DRIVER, "TREERING_DEVICE_BLOCKS": "2"}
    done = subprocess.run([PERF, "-b", "64", "-e", "64K", "-f", "1024", "-n", "2", *words], env=environment,
                          capture_output=True, text=True, timeout=60)
    return done, [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]


class WrongValues(unittest.TestCase):
    def expect_counted(self, *words, checks=1):
        good, rows = run(*words, wrong=False)
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertEqual([(row[8], row[12]) for row in rows], [("0", "0")] * 2)
        bad, rows = run(*words, wrong=True)
        self.assertEqual(bad.returncode, 1, bad.stderr)
        # The last element, on both ranks, of each verified call.
        each = str(2 * checks)
        self.assertEqual([(row[8], row[12]) for row in rows], [(each, each)] * 2)
        self.assertIn(f"# Out of bounds values : {8 * checks} FAILED", bad.stdout)

    def test_on_host_memory(self):
        self.expect_counted("--procs", "2")
        self.expect_counted("-t", "2", "--stream", "-c", "3", checks=3)

    def test_those_of_all_tables_of_an_endless_run_count(self):
        with subprocess.Popen([PERF, "--procs", "2", "-b", "64", "-e", "64K", "-f", "1024", "-n", "2", "-N", "0"], text=True,
                              env=os.environ | {"LD_PRELOAD": SHORT}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            seen = 0
            while seen < 3:  # a table has two rows
                seen += not process.stdout.readline().startswith("#")
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, errors)
        wrong = int(output.split("# Out of bounds values : ")[1].split(" FAILED")[0])
        self.assertGreaterEqual(wrong, 3 * 2 * 2)  # rows, places, ranks: a table alone has 8

    @unittest.skipIf(DRIVER is None, "this build has no CUDA support")
    def test_on_gpu_memory(self):
        for words in (["-g", "2"], ["--procs", "2"], ["-g", "2", "-G", "2"]):
            with self.subTest(words=words):
                self.expect_counted("--memory", "gpu", *words)
        self.expect_counted("--memory", "gpu", "-g", "2", "-G", "2", "-c", "3", checks=3)

    # Its kernel ends by itself, and what follows in the stream runs.
    @unittest.skipIf(DRIVER is None, "this build has no CUDA support")
    def test_a_call_that_fails_in_the_stream_is_no_time(self):
        # The first, and the last of a row: warm-up, two timed, one verified, in place too.
        for lost_from in ("1", "8"):
            done, rows = run("--memory", "gpu", "-g", "2", "-T", "1", wrong=True, LOST_FROM=lost_from)
            self.assertEqual((done.returncode, rows), (1, []), done.stderr)
            self.assertIn("error: rank 0: allreduce: ", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
