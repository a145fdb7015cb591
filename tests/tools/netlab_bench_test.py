# SPDX-License-Identifier: Apache-2.0
"""bench/netlab: what it computes, and short runs of Treering alone between two hosts.

usage: netlab_bench_test.py SOURCE_ROOT BUILD_ROOT
"""
import argparse
import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD = sys.argv.pop(1), sys.argv.pop(1)
sys.dont_write_bytecode = True
for folder in ("bench", "bench/peers", "tests/netlab"):
    sys.path.insert(0, os.path.join(ROOT, folder))
from netlab import SKIP  # noqa: E402
from network import sizes, training, verdicts  # noqa: E402

MIB = 1 << 20


def record():
    return verdicts.Record(argparse.Namespace(csv=None, json=None, chart=None, patience=0, sizes=[8, 4 * MIB]))


class Parts(unittest.TestCase):
    def test_placements(self):
        self.assertEqual(sizes.placement(2, 2), [0, 0, 1, 1])
        self.assertEqual(sizes.placement(2, 2, shuffled=True), [0, 1, 0, 1])

    def test_part_of_the_link(self):
        # 4 hosts: 1.5 times the bytes over each link; 4 MiB at 1 Gbit/s take 50.3 ms.
        self.assertAlmostEqual(sizes.of_link(4, 4 * MIB, 1000, 50331.648), 1.0)
        self.assertAlmostEqual(sizes.of_link(2, 4 * MIB, 2000, 2 * 16777.216), 0.5)

    def test_a_slow_library_gets_fewer_calls(self):
        self.assertGreater(sizes.calls(8, 4, 1000, False, 100), sizes.calls(8, 4, 1000, False, 5000))
        self.assertEqual(sizes.calls(64 * MIB, 16, 1000, False, 1e9), 2)

    def test_the_gradients_are_those_of_resnet50(self):
        gradients = training.resnet50_gradients()
        self.assertEqual((len(gradients), sum(gradients)), (161, 25557032))

    def test_verdicts(self):
        kept = record()
        table = kept.new_table("t")
        for library, result in (("gloo", (100.0, 0)), ("openmpi", (50.0, 3)), ("treering/fp32", (40.0, 0))):
            kept.add(table, library, 8, result)
        kept.add(table, "openmpi", 4 * MIB, None)
        self.assertEqual(verdicts.least_ratio(table, "treering/fp32", 8, MIB), (1.25, 8))
        self.assertIsNone(verdicts.least_ratio(table, "treering/fp32", MIB, 8 * MIB))
        self.assertEqual(kept.wrong, {"gloo": 0, "openmpi": 3, "treering/fp32": 0})
        kept.expect("t", "ratio", 1.25, 1.4)
        kept.expect("t", "time", 0.5, 0.55, least=False)
        self.assertEqual([row["met"] for row in kept.rows], [False, True])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            kept.print_table("t")
            kept.print_rows()
        self.assertRegex(out.getvalue(), "MISSED  t: ratio: 1.25, at least 1.4")
        self.assertIn("openmpi 3", out.getvalue())


class Runs(unittest.TestCase):
    def run_bench(self, *arguments):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TREERING_")}
        done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "netlab"), "--build", BUILD, "--quick",
                               *arguments], env=environment, capture_output=True, text=True, timeout=100)
        if done.returncode == SKIP:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("FAILED", done.stderr)
        return done.stdout

    def test_sizes(self):
        with tempfile.TemporaryDirectory() as folder:
            names = {kind: os.path.join(folder, "out." + kind) for kind in ("csv", "json")}
            output = self.run_bench("--scenario", "links", "--hosts", "2", "--mbit", "1000", "--libraries", "treering",
                                    "--max", "64K", *(word for kind in names for word in ("--" + kind, names[kind])))
            self.assertIn("wrong values: treering/fp32 0", output)
            with open(names["json"]) as file:
                found = json.load(file)
            with open(names["csv"]) as file:
                rows = list(csv.reader(file))
        (title, table), = found["rounds_us"].items()
        self.assertEqual(title, "2 hosts x 1 rank, 1000 Mbit/s")
        self.assertEqual(list(table["treering/fp32"]), ["8", "64", "512", "4096", "32768"])
        # 32 KiB cross each link once: no measurement is faster than the link, bursts included.
        self.assertGreater(table["treering/fp32"]["32768"][0], 10)
        self.assertEqual(len(rows), 1 + 5)

    def test_loops(self):
        """Every variant of the loop, its values checked by the ranks."""
        output = self.run_bench("--scenario", "resnet", "--hosts", "1,2", "--libraries", "treering", "--compute-ms", "1")
        for variant in ("plain", "fused", "fused-fp16", "fused-fp16-double"):
            self.assertIn(f"treering/{variant} 0", output)
        self.assertIn("treering/fused-fp16-double", output)

    def test_latency(self):
        """Beside the ping-pong and the doubling over bare sockets, which checks its sums."""
        output = self.run_bench("--scenario", "latency", "--hosts", "2", "--libraries", "treering")
        self.assertIn("wrong values: treering/fp32 0", output)
        self.assertRegex(output, r"bare TCP, one way: \d+\.\d us when both sides look")
        self.assertRegex(output, r"recursive doubling of 8 B: \d+\.\d us \(rounds: \d")
        self.assertRegex(output, r"8 B, one-way latencies of bare TCP \(looking\): [\d.]+, at most 2")

    def test_what_is_missing_is_named(self):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "netlab"), "--build", "/nowhere", "--libraries",
                               "treering,openmpi", "--scenario", "links"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("left out: treering: /nowhere/bench/network/treering_rank is not built", done.stderr)
        self.assertIn("left out: openmpi", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
