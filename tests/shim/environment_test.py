#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL_* variables and what the log shows of a communicator.

usage: environment_test.py CLIENT OLD_DRIVER DEVICES_ON_THE_CPU
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CLIENT, OLD_DRIVER, CPU_DEVICE = sys.argv[1:4]
LINE = re.compile(r"^[\w.-]+:\d+:\d+ (?:\[\d+\] )?NCCL (?:INFO|WARN) ", re.MULTILINE)


def run(*arguments, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "TREERING_"))}
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run([CLIENT, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env={**clean, "HOME": home, **variables})


class Log(unittest.TestCase):
    def test_silent_by_default(self):
        self.assertEqual(run(3, 10).stdout, "sum 3 3\n")

    def test_version(self):
        lines = run(2, 10, NCCL_DEBUG="VERSION").stdout.splitlines()
        self.assertRegex(lines[0], r"^NCCL version 2\.28\.9\+treering\d+\.\d+\.\d+$")
        self.assertEqual(lines[1:], ["sum 2 2"])

    def test_info_shows_rings_trees_and_choices(self):
        lines = run(4, 10, NCCL_DEBUG="INFO").stdout.splitlines()
        text = "\n".join(lines)
        for line in lines:
            self.assertTrue(LINE.match(line) or line.startswith(("NCCL version", "sum ")), line)
        self.assertRegex(text, r"\[0\] NCCL INFO Channel 00/0\d : [0-3]( [0-3]){3}\n")
        trees = dict(re.findall(r"\[(\d)\] NCCL INFO Trees \[0\] (\S+) \[1\]", text))
        self.assertEqual(sorted(trees), ["0", "1", "2", "3"])
        self.check_tree(trees)
        for name in ("AllReduce", "ReduceScatter", "AlltoAll", "Broadcast"):
            self.assertRegex(text, rf"NCCL INFO {name}: (up to \d+ bytes [\w-]+/\w+ x\d, )*(above )?[\w-]+/\w+ x\d\n")
        self.assertRegex(text, r"comm 0x\w+ rank 2 nranks 4 cudaDev 2 - Init COMPLETE")
        self.assertRegex(text, r"comm 0x\w+ rank 2 nranks 4 cudaDev 2 - Destroy COMPLETE")

    def check_tree(self, trees):
        """children/children/children->rank->parent: every rank but one has a parent that has it as a child."""
        roots = 0
        for rank, shape in trees.items():
            below, own, above = shape.split("->")
            self.assertEqual(own, rank)
            self.assertEqual(len(below.split("/")), 3)
            if above == "-1":
                roots += 1
            else:
                self.assertIn(rank, trees[above].split("->")[0].split("/"))
        self.assertEqual(roots, 1)

    def test_subsystems(self):
        text = run(2, 10, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="COLL,TUNING").stdout
        self.assertRegex(text, r"AllReduce: opCount 0 sendbuff 0x\w+ recvbuff 0x\w+ count 10 datatype 7 op 2 root 0 comm 0x\w+ "
                               r"\[nranks=2\] stream ")
        self.assertRegex(text, r"AllReduce: 40 Bytes -> Algo [\w-]+ proto \w+ channel\{Lo\.\.Hi\}=\{0\.\.\d\}")
        self.assertNotIn("Channel 00", text)
        text = run(2, 10, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="^INIT").stdout
        self.assertIn("opCount", text)
        self.assertNotIn("Init COMPLETE", text)

    def test_file(self):
        with tempfile.TemporaryDirectory() as folder:
            ran = run(2, 10, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=f"{folder}/log.%h.%p.%%")
            self.assertEqual(ran.stdout, "sum 2 2\n")
            [file] = Path(folder).iterdir()
            self.assertRegex(file.name, rf"^log\.{re.escape(socket.gethostname().split('.')[0])}\.\d+\.%$")
            self.assertIn("Init COMPLETE", file.read_text())
        ran = run(2, 10, NCCL_DEBUG="VERSION", NCCL_DEBUG_FILE=f"{CLIENT}/log")  # a file is no folder
        self.assertIn(f"NCCL_DEBUG_FILE={CLIENT}/log", ran.stderr)
        self.assertIn("NCCL version", ran.stdout)

    def test_unknown_level(self):
        self.assertIn("NCCL_DEBUG is 'LOUD'", run(2, 10, NCCL_DEBUG="LOUD").stdout)


class Variables(unittest.TestCase):
    def choice(self, **variables):
        text = run(4, 1 << 18, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", **variables).stdout
        self.assertIn("sum 4 4", text)
        return set(re.findall(r"Algo (\S+) proto \S+ channel\{Lo\.\.Hi\}=\{0\.\.(\d)\}", text))

    def test_algorithms(self):
        self.assertEqual({a for a, _ in self.choice(NCCL_ALGO="Ring")}, {"ring"})
        self.assertEqual({a for a, _ in self.choice(NCCL_ALGO="allreduce:tree")}, {"tree"})
        self.assertEqual({a for a, _ in self.choice(NCCL_ALGO="ring", TREERING_ALGO="two-shot")}, {"two-shot"})
        self.assertEqual(self.choice(NCCL_ALGO="NVLS,Tree"), self.choice())

    def test_one_rank_with_an_algorithm(self):
        self.assertEqual(run(1, 10, NCCL_ALGO="Ring").stdout, "sum 1 1\n")

    def test_unknown_words_are_errors(self):
        for variable in ("NCCL_ALGO", "NCCL_PROTO"):
            ran = run(2, 10, **{variable: "Square"})
            self.assertEqual(ran.returncode, 1)
            self.assertRegex(ran.stdout, rf"^error 4 {variable} is 'Square': 'square' is unknown; known are ")
        self.assertEqual(run(2, 10, NCCL_PROTO="^LL128").returncode, 0)

    def test_channels(self):
        self.assertEqual({c for _, c in self.choice(NCCL_ALGO="Ring", NCCL_MAX_NCHANNELS="1")}, {"0"})
        self.assertEqual({c for _, c in self.choice(NCCL_ALGO="Tree", NCCL_MIN_CTAS="2")}, {"1"})

    def test_paths(self):
        for variables in ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_SHM_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"},
                          {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, {"NCCL_BUFFSIZE": "1"}):
            self.assertEqual(run(2, 5000, **variables).stdout, "sum 2 2\n", variables)
        logged = run(2, 10, NCCL_P2P_DISABLE="1", TREERING_DEBUG="INFO").stderr
        self.assertRegex(logged, r"communicator of 2 ranks on .*: 1 x shared-memory")
        logged = run(2, 10, NCCL_SHM_DISABLE="1", TREERING_DEBUG="INFO").stderr
        self.assertRegex(logged, r"communicator of 2 ranks on .*: 1 x in-process")

    def test_access_between_gpus(self):
        gpus = {"TREERING_DEVICE_LIBRARY": CPU_DEVICE, "TREERING_DEBUG": "INFO"}
        for variables in ({}, {"NCCL_P2P_DISABLE": "0"}, {"NCCL_P2P_LEVEL": "PIX"},
                          {"NCCL_P2P_DISABLE": "1", "TREERING_DEVICE_P2P": "1"}):
            logged = run(2, 10, **gpus, **variables).stderr
            self.assertIn("GPUs exchange by kernels", logged, variables)
        for variables in ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"}, {"NCCL_P2P_LEVEL": "0"}):
            logged = run(2, 10, **gpus, **variables).stderr
            self.assertRegex(logged, r" rank 0 I: buffers of GPUs are staged in host memory: rank \d forbids access between GPUs", variables)

    def test_bad_numbers_are_named_and_ignored(self):
        ran = run(2, 10, NCCL_DEBUG="WARN", NCCL_BUFFSIZE="4M")
        self.assertIn("NCCL WARN NCCL_BUFFSIZE is '4M'", ran.stdout)
        self.assertIn("sum 2 2", ran.stdout)

    def test_accepted(self):
        text = run(2, 10, NCCL_DEBUG="INFO", NCCL_IB_DISABLE="1", NCCL_WITHOUT_MEANING="1").stdout
        self.assertIn("NCCL INFO NCCL_IB_DISABLE set by environment to 1; accepted without effect\n", text)
        self.assertIn("NCCL INFO NCCL_WITHOUT_MEANING set by environment to 1, which this library does not know\n", text)
        self.assertIn("sum 2 2", text)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "settings"
            file.write_text("# a comment\nNCCL_DEBUG = VERSION\nNCCL_ALGO=Nothing # wrong on purpose\n")
            ran = run(2, 10, NCCL_CONF_FILE=str(file))
            self.assertIn("NCCL version", ran.stdout)
            self.assertIn("error 4 NCCL_ALGO is 'Nothing'", ran.stdout)
            self.assertEqual(run(2, 10, NCCL_CONF_FILE=str(file), NCCL_ALGO="Ring", NCCL_DEBUG="NONE").stdout, "sum 2 2\n",
                             "a file does not override the environment")
            (Path(folder) / ".nccl.conf").write_text("NCCL_PROTO=Nothing\n")
            self.assertIn("error 4 NCCL_PROTO is 'Nothing'", run(2, 10, HOME=folder).stdout)
            self.assertIn("NCCL_ALGO", run(2, 10, HOME=folder, NCCL_CONF_FILE=str(file)).stdout, "one or the other")


class GpusThatCannotBeUsed(unittest.TestCase):
    """They are an error: to take their memory for memory of the host would end in a crash."""

    def run_with(self, gpus, **variables):
        return run(2, 10, TREERING_CUDA_DRIVER=OLD_DRIVER, OLD_DRIVER_GPUS=gpus, **variables).stdout

    def test_with_a_driver_that_is_too_old(self):
        text = self.run_with("2")
        self.assertRegex(text, r"^error 1 ncclCommInitAll: the CUDA driver shows 2 GPU\(s\), which cannot be used: "
                               r"(.*the driver is too old|the library was built or installed without CUDA support)")
        self.assertIn("TREERING_DEVICE=-1", text)

    def test_without_the_library_for_gpus(self):
        text = self.run_with("1", TREERING_DEVICE_LIBRARY="/nonexistent/libtreering-cuda.so.0")
        self.assertIn("error 1 ncclCommInitAll: the CUDA driver shows 1 GPU(s)", text)
        self.assertIn("/nonexistent/libtreering-cuda.so.0", text)

    def test_host_memory_is_used_where_it_is_asked_for_or_there_is_no_gpu(self):
        self.assertEqual(self.run_with("2", TREERING_DEVICE="-1"), "sum 2 2\n")
        self.assertEqual(self.run_with("0"), "sum 2 2\n")
        self.assertEqual(run(2, 10, TREERING_CUDA_DRIVER="/nonexistent/libcuda.so.1").stdout, "sum 2 2\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
