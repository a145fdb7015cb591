#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What treering-trace says about directories and files that it cannot use.

usage: trace_test.py TREERING_TRACE
"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = sys.argv.pop(1)


def event(name, track=1, **args):
    return {"name": name, "ph": "M", "pid": 0, "tid": track, "args": args}


def head(rank, clock="boot1"):
    return event("treering_process", 0, version=1, host="node1", clock=clock, pid=100 + rank, rank=rank)


def group(rank, ranks=2):
    return event("treering_communicator", communicator="steps", id="0123", rank=rank, ranks=ranks)


def call(number, begin, duration, **more):
    return {"name": "barrier", "cat": "call", "ph": "X", "ts": begin, "dur": duration, "pid": 0, "tid": 1,
            "args": {"number": number, "bytes": 0, "algorithm": "one-shot", **more}}


class Tool(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, name, *events, end=""):
        path = self.folder / name
        path.write_text("[\n" + "".join(json.dumps(each) + ",\n" for each in events) + end)
        return path

    def write_both(self):
        self.write("rank0-node1-100.json", head(0), group(0), call(1, 1000, 900.5, waited_us=900.25, waited_for=1))
        self.write("rank1-node1-101.json", head(1), group(1), call(1, 1900, 1.5))

    def run_tool(self, *arguments):
        return subprocess.run([PROGRAM, self.folder, *arguments], capture_output=True, text=True, timeout=60)

    def expect_error(self, *words, arguments=()):
        done = self.run_tool(*arguments)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(str(word), done.stderr)

    def test_good_files(self):
        self.write_both()
        done = self.run_tool()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("2 processes, 1 clock, 1 communicator, 1 call\n", done.stdout)
        self.assertRegex(done.stdout, r"rank 1 \(pid 101 on node1\) +1 +900\.0 us +900\.0 us +barrier 1 of steps\n")
        joined = json.loads((self.folder / "joined.json").read_text())
        self.assertEqual([(e["pid"], e["ts"], e["dur"]) for e in joined if e["ph"] == "X"], [(0, 0, 900.5), (1, 900, 1.5)])
        again = self.run_tool("-o", self.folder / "other.json")  # the joined file is none of the trace's
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual((self.folder / "other.json").read_text(), (self.folder / "joined.json").read_text())

    def test_no_directory(self):
        self.folder /= "none"
        self.expect_error(self.folder, "No such file or directory")

    def test_no_files(self):
        self.expect_error(self.folder, "no file of a trace", f"TREERING_TRACE={self.folder}")

    def test_missing_rank(self):
        path = self.write("rank1-node1-101.json", head(1), group(1, 3), call(1, 0, 1))
        self.expect_error(self.folder, "2 of 3 ranks of communicator steps have no file there: 0, 2", "--partial")
        done = self.run_tool("--partial")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(path.exists())

    def test_rank_twice(self):
        self.write_both()
        other = self.write("rank1-node2-101.json", head(1), group(1))
        self.expect_error(other, "rank1-node1-101.json", "are both of rank 1 of communicator steps: remove one")

    def test_malformed_files(self):
        self.write_both()
        cases = {
            "": ["treering_process is missing"],
            "text\n": [":1: is not a trace"],
            "[\n{}\n": [":2: "],
            "[\n[]\n": [":2: "],
            "[\n{\"name\": 3}\n": [":2: "],
            "[\n" + json.dumps(head(2)) + ",\n{\"name\"\n": [":3: "],
            "[\n" + json.dumps(head(2)) + ",\n" + json.dumps(call(1, 0, 1)) + ",\n": [":3: a call of track 1, which no event"],
            "[\n" + json.dumps(head(2) | {"args": {"version": 2}}) + ",\n": [":2: is of version 2, and this program reads version 1"],
            "[\n" + json.dumps({"name": "x", "ph": "M"}) + ",\n": ["treering_process is missing"],
            "\x00\xff\n": [":1: "],
        }
        for text, words in cases.items():
            with self.subTest(text=text):
                path = self.folder / "rank2-node1-102.json"
                path.write_text(text, encoding="latin-1")
                self.expect_error(path, *words)

    def test_unreadable_output(self):
        self.write_both()
        self.expect_error(self.folder / "none/out.json", "cannot be written: No such file or directory",
                          arguments=("-o", self.folder / "none/out.json"))

    def test_killed_process(self):
        self.write_both()
        path = self.write("rank1-node1-101.json", head(1), group(1), call(1, 1900, 1.5), end='{"name":"barrier","cat":"ca')
        done = self.run_tool()
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr, f"note: {path}: the last line is not complete and is left out: the process was killed\n")

    def test_lost_calls(self):
        self.write_both()
        path = self.write("rank1-node1-101.json", head(1), group(1), call(1, 1900, 1.5), event("treering_end", lost=7))
        self.assertEqual(self.run_tool().stderr, f"note: {path}: 7 calls are missing: they came faster than they could be written\n")

    def test_clocks_that_never_met(self):
        self.write("rank0-node1-100.json", head(0), group(0), call(1, 0, 1))
        self.write("rank1-node1-101.json", head(1, "boot2"), group(1), call(2, 0, 1))
        self.expect_error("the clocks of node1 and node1 cannot be joined")

    def test_arguments(self):
        done = self.run_tool("--lest", "3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean --least?", done.stderr)
        done = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("directory", done.stderr)
        self.assertEqual(subprocess.run([PROGRAM, "--help"], capture_output=True, timeout=60).returncode, 0)


if __name__ == "__main__":
    unittest.main()
