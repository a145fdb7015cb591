# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/peers that compute: sizes, iterations, ratios and the summary against the targets; and which library
--before makes a program load.

usage: peers_test.py BENCH_PEERS PROGRAM LIBRARY     PROGRAM: one that is linked with LIBRARY
"""
import io
import os
import re
import shutil
import sys
import tempfile
import unittest

FOLDER, PROGRAM, LIBRARY = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
sys.dont_write_bytecode = True
sys.path.insert(0, FOLDER)
from comparison import points, report  # noqa: E402
from comparison.libraries import (MeasurementFailed, collective_names, library_path, loaded_library, parse, run_all,  # noqa: E402
                                  why_no_library)

ROUNDS = {4: {"openmpi": {8: [1.0, 3.0, 2.0], 16 << 20: [900.0]}, "mpich": {8: [4.0], 16 << 20: [600.0]},
              "treering/malloc": {8: [1.0], 16 << 20: [150.0]}, "treering/mem_alloc": {8: [0.5], 16 << 20: [150.0]}}}


class Points(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual(points.parse_size("64K"), 65536)
        self.assertEqual(points.sizes_between(8, 64, 2), [8, 16, 32, 64])
        for text in ("", "x", "2", "8KB", "-8"):
            with self.assertRaises(ValueError):
                points.parse_size(text)

    def test_batches_cover_every_size_once(self):
        sizes = points.sizes_between(8, 256 << 20, 2)
        self.assertEqual([size for batch in points.batches(sizes) for size in batch], sizes)

    def test_iterations_fall_with_size_and_never_below_three(self):
        counts = [points.iterations_for(size, 4, 4, False) for size in points.sizes_between(8, 1 << 30, 2)]
        self.assertEqual(counts[0], 20000)
        self.assertEqual(counts[-1], 3)
        self.assertEqual(counts, sorted(counts, reverse=True))


class Report(unittest.TestCase):
    def test_ratio_is_best_peer_over_ours(self):
        self.assertEqual(report.ratios(ROUNDS[4], "treering/malloc"), {8: 2.0, 16 << 20: 4.0})

    def test_summary_holds_each_range_against_its_target(self):
        rows = {(row["buffers"], row["range"]): row for row in report.summary(ROUNDS)}
        self.assertEqual(rows["malloc", ">= 16 MiB"]["target"], 3.0)
        self.assertTrue(rows["malloc", ">= 16 MiB"]["met"])
        self.assertEqual(rows["mem_alloc", ">= 16 MiB"]["target"], 4.5)
        self.assertFalse(rows["mem_alloc", ">= 16 MiB"]["met"])
        self.assertEqual(rows["malloc", "any size, least"]["value"], 2.0)
        self.assertEqual(rows["malloc", "openmpi, least"]["value"], 2.0)

    def test_an_earlier_build_is_no_peer_and_has_ratios_of_its_own(self):
        rounds = {4: {"openmpi": {8: [2.0]}, "treering/malloc": {8: [1.0, 2.0, 4.0], 64: [2.0]},
                      "treering/malloc-before": {8: [0.5, 1.0, 3.0], 64: [4.0]}}}
        self.assertEqual(report.speedups(rounds[4], "treering/malloc"), {8: (0.5, 0.5), 64: (2.0, 2.0)})
        self.assertEqual(report.ratios(rounds[4], "treering/malloc"), {8: 1.0})
        self.assertEqual({row["buffers"] for row in report.summary(rounds)}, {"malloc"})
        out = io.StringIO()
        report.print_speedups(4, rounds[4], out)
        self.assertIn("8 B 0.50 0.50  64 B 2.00 2.00", out.getvalue())
        self.assertIn("median: geometric mean 1.000, least 0.50", out.getvalue())

    def test_turns_begin_with_another_library_each_time(self):
        self.assertEqual([points.rotated(["a", "b", "c"], turn) for turn in (0, 1, 5)],
                         [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]])

    def test_files_and_tables(self):
        out = io.StringIO()
        report.print_table(4, ROUNDS[4], out)
        self.assertIn("16 MiB", out.getvalue())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.csv")
            report.write_csv(path, ROUNDS)
            with open(path) as file:
                self.assertEqual(len(file.readlines()), 1 + 10)
        self.assertIn("multiplot", report.chart_script("x.svg", ROUNDS))


class Libraries(unittest.TestCase):
    def test_collectives_are_those_of_the_drivers_in_the_order_of_their_enum(self):
        with open(os.path.join(FOLDER, "measure.h")) as file:
            enum = re.search(r"enum collective \{([^}]*)\}", file.read())[1]
        *known, count = re.findall(r"\bk(\w+)", enum)
        self.assertEqual(count, "Collectives")
        self.assertEqual([name.replace("-", "") for name in collective_names()], [name.lower() for name in known])

    def test_output_is_read_and_noise_passed_over(self):
        self.assertEqual(parse("a warning\n8 100 1.5 0\n", [(8, 100)]), {8: 1.5})
        for text in ("8 100 1.5 2\n", "16 100 1.5 0\n"):
            with self.assertRaises(MeasurementFailed):
                parse(text, [(8, 100)])

    def test_hang_and_failure_are_reported(self):
        with self.assertRaisesRegex(MeasurementFailed, "within 1 s"):
            run_all([["sleep", "60"]], 1)
        with self.assertRaisesRegex(MeasurementFailed, "status 3: gone"):
            run_all([["sh", "-c", "echo gone >&2; exit 3"]], 10)


class EarlierLibrary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        if loaded_library(PROGRAM, {}) != os.path.realpath(LIBRARY):
            self.skipTest(f"{PROGRAM} is not linked with {LIBRARY}")

    def test_it_is_loaded_by_either_name(self):
        for name in ("libtreering.so.0", "libtreering.so"):
            folder = os.path.join(self.folder, name + "-alone")
            os.mkdir(folder)
            copy = shutil.copy(LIBRARY, os.path.join(folder, name))
            self.assertIsNone(why_no_library(folder, PROGRAM))
            self.assertEqual(loaded_library(PROGRAM, library_path(folder)), os.path.realpath(copy))

    def test_what_would_compare_this_build_with_itself_is_refused(self):
        self.assertIn("there is no libtreering.so.0 and no libtreering.so in", why_no_library(self.folder, PROGRAM))
        self.assertIsNone(why_no_library(os.path.dirname(LIBRARY), os.path.join(self.folder, "not-built")))
        with open(os.path.join(self.folder, "libtreering.so"), "w") as file:
            file.write("no library")
        self.assertIn("does not load " + os.path.realpath(file.name), why_no_library(self.folder, PROGRAM))
        self.assertIn("was it linked with a static library?", why_no_library(os.path.dirname(LIBRARY), sys.executable))


if __name__ == "__main__":
    unittest.main()
