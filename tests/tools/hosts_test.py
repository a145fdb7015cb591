#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""allreduce-perf on several hosts, and under mpirun: what starts the ranks, and what is said when they do not start.

usage: hosts_test.py ALLREDUCE_PERF
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PERF = os.path.abspath(sys.argv[1])
SMALL = ["-b", "8", "-e", "64K", "-f", "16", "-n", "3", "-w", "1"]
# Runs the command here, on a "host" that exists in the environment alone.
HERE = "env TEST_HOST={host}"


def environment(**variables):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "OMPI", "SLURM"))}
    return {**kept, "TREERING_TIMEOUT": "30", **variables}


def run(*command, **variables):
    return subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL)


class Hosts(unittest.TestCase):
    def expect_table(self, done, ranks):
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertEqual(done.stdout.count("#  Rank"), ranks, done.stdout)
        rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
        self.assertEqual([row[0] for row in rows], ["8", "128", "2048", "32768"])
        for row in rows:  # the columns of wrong values
            self.assertEqual((row[8], row[12]), ("0", "0"), row)

    def test_each_process_is_started_through_the_launcher(self):
        self.expect_table(run(PERF, "--hosts", "a:2,b:1", "--launcher", HERE, *SMALL), 3)
        # One argument for a remote shell, as ssh wants it.
        self.expect_table(run(PERF, "--hosts=a:1,b", "--launcher", "sh -c {command} {host}", *SMALL), 2)
        self.assertEqual(run(PERF, "--hosts=a:2", "--launcher", HERE, *SMALL, "-I").returncode, 0)

    def test_a_baseline_is_compared_once_the_number_of_ranks_is_known(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            self.assertEqual(run(PERF, "--procs", "2", *SMALL, "-J", path).returncode, 0)
            with open(path) as file:
                baseline = json.load(file)
            for row in baseline["results"]:  # far slower than this machine, which may be busy
                row["out_of_place"]["median"] = row["in_place"]["median"] = 1e6
            with open(path, "w") as file:
                json.dump(baseline, file)
            launched = [PERF, "--launcher", HERE, *SMALL, "--baseline", path, "--tolerance", "1000000", "--hosts"]
            done = run(*launched, "a:1,b:1")
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            self.assertIn("8 times compared, 0 slower", done.stdout)
            done = run(*launched, "a:2,b:1")
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stderr.count("it was made with 2 ranks, this run has 3"), 1, done.stderr)

    def test_the_environment_arrives(self):
        done = run(PERF, "--hosts", "a:2", "--launcher", HERE, *SMALL, TREERING_ALGO="it's")
        self.assertEqual(done.returncode, 1)
        self.assertIn("unknown algorithm 'it's'", done.stderr)
        self.assertNotIn("has no peer", done.stderr)

    def expect_once(self, words, *command, **variables):
        """Some time: on a busy machine a rank may come to its error more than a second after the first."""
        for _ in range(5):
            done = run(*command, **variables)
            self.assertIn(words, done.stderr)
            if done.stderr.count(words) == 1:
                return
        self.fail(done.stderr)

    def test_what_ranks_have_in_common_is_printed_once(self):
        hosts = [PERF, "--hosts", "a:2,b:2", "--launcher", HERE, "-b", "8", "-e", "8", "-N", "0"]
        self.expect_once("unknown algorithm 'unknown'", *hosts, TREERING_ALGO="unknown")
        # Without the variable that the launching process gives to all: the ranks have one parent.
        ranks = [f"TREERING_RANK={rank} TREERING_RANKS=2 TREERING_ID=00 {PERF} & " for rank in range(2)]
        self.expect_once("not a unique id", "sh", "-c", "".join(ranks) + "wait")

    def test_what_tells_hosts_apart_does_not_arrive(self):
        done = run(PERF, "--hosts", "a:2,b:1", "--launcher", "env TREERING_HOSTID={host}", *SMALL,
                   TREERING_HOSTID="outer", TREERING_DEBUG="INFO")
        self.expect_table(done, 3)
        self.assertIn(" rank 0 I: communicator of 3 ranks on 2 hosts", done.stderr)
        for host, count in {"a": 2, "b": 1, "outer": 1}.items():  # the launching process is where the ranks meet
            self.assertEqual(done.stderr.count(f"(TREERING_HOSTID {host})"), count, done.stderr)

    def test_failures_are_told(self):
        done = run(PERF, "--hosts", "a:1,b:1", "--launcher", "no-such-launcher {host}", *SMALL)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no-such-launcher: No such file", done.stderr)
        done = run(PERF, "--hosts", "a:1,b:1", "--launcher", "true {host}", *SMALL)
        self.assertEqual(done.returncode, 1)
        self.assertIn("host a: the command for rank 0 ended well, but started no rank: 'true' 'a' 'sh' '-c'", done.stderr)
        with tempfile.TemporaryDirectory() as folder:  # a remote shell that reaches host a alone
            shell = os.path.join(folder, "shell")
            with open(shell, "w") as file:
                file.write('[ "$1" = a ] || exit 7\nexec sh -c "$2"\n')
            done = run(PERF, "--hosts", "a:2,b:1", "--launcher", f"sh {shell} {{host}} {{command}}", *SMALL)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"error: host b: the command for rank 2 \(pid \d+\) failed with exit status 7; the run is over")
        for arguments, words in ((["--hosts", "a:x"], '"a:x" is not HOST:PROCESSES'),
                                 (["--hosts", "a:2", "--procs", "2"], "leave out --procs, -t and -g"),
                                 (["--hosts", "a:2", "--launcher", "ssh"], "lacks {host}"),
                                 (["--procs", "1025"], "whole number from 1 to 1024"),
                                 (["--procs", "600", "-t", "2"], "more than 1024 ranks"),
                                 ([], "1 rank has no peer")):
            done = run(PERF, *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(words, done.stderr)

    @unittest.skipIf(shutil.which("mpirun.openmpi") is None, "Open MPI is not installed")
    def test_open_mpi(self):
        self.expect_table(run("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", PERF, *SMALL), 3)

    @unittest.skipIf(shutil.which("mpiexec.hydra") is None, "MPICH is not installed")
    def test_mpich(self):
        self.expect_table(run("mpiexec.hydra", "-n", "3", PERF, *SMALL), 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
