#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prometheus's own parser reads what a process writes and serves.

usage: metrics_test.py SOME_CALLS
"""
import os
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

PROGRAM = sys.argv.pop(1)
NAME = 'a "b"\\\nä?'

try:
    from prometheus_client.openmetrics import parser
except ImportError:
    parser = None


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def environment(metrics):
    return {**os.environ, "TREERING_METRICS": metrics}


class Metrics(unittest.TestCase):
    def expect_numbers(self, text):
        self.assertTrue(text.endswith("\n# EOF\n"), text)
        if parser is None:
            self.skipTest("prometheus_client was not found: pip install prometheus_client")
        families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        self.assertEqual(families["treering_calls"].type, "counter")
        self.assertEqual(families["treering_call_seconds"].type, "histogram")
        self.assertEqual(families["treering_call_seconds"].unit, "seconds")
        calls = {(s.labels["communicator"], s.labels["rank"]): s.value for s in families["treering_calls"].samples}
        self.assertEqual(calls, {(name, str(rank)): 300 for name in (NAME, "plain") for rank in range(3)})
        bytes_ = [s.value for s in families["treering_call_bytes"].samples]
        self.assertEqual(bytes_, [100 * 4 * (1 + 100 + 20000)] * 6)
        counts = [s.value for s in families["treering_call_seconds"].samples if s.name.endswith("_count")]
        self.assertTrue(all(200 < count <= 300 for count in counts), counts)
        self.assertEqual({s.labels["transport"] for s in families["treering_sent_bytes"].samples}, {"in-process"})

    def test_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "m.prom")
            subprocess.run([PROGRAM], env=environment(str(path)), check=True, timeout=60)
            self.assertEqual([file.name for file in Path(folder).iterdir()], ["m.prom"])
            self.expect_numbers(path.read_text())

    def test_of_a_port(self):
        port = free_port()
        with subprocess.Popen([PROGRAM, "wait"], env=environment(f":{port}"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            self.assertEqual(process.stdout.readline(), b"ready\n")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as response:
                    self.assertTrue(response.headers["Content-Type"].startswith("application/openmetrics-text"))
                    text = response.read().decode()
                with self.assertRaises(urllib.error.HTTPError) as raised:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=20)
                self.assertEqual(raised.exception.code, 404)
                raised.exception.close()
            finally:
                process.stdin.close()
            self.assertEqual(process.wait(60), 0)
        self.expect_numbers(text)

    def test_a_client_that_says_nothing_holds_up_no_other_for_long(self):
        port = free_port()
        with subprocess.Popen([PROGRAM, "wait"], env=environment(f":{port}"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            self.assertEqual(process.stdout.readline(), b"ready\n")
            with socket.create_connection(("127.0.0.1", port)):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as response:
                    self.assertIn(b"# EOF", response.read())
            process.stdin.close()
            self.assertEqual(process.wait(60), 0)


if __name__ == "__main__":
    unittest.main()
