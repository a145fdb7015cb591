# SPDX-License-Identifier: Apache-2.0
"""What the tests of several hosts share: one Lab for a test class, and treering-perf started on its hosts."""

import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "netlab"))
from netlab import SKIP, Lab, Unavailable  # noqa: E402

# Through which treering-perf on the first host enters the others, as it would by ssh.
LAUNCHER = "nsenter --target={host} --net --uts --ipc --mount -- env TREERING_HOSTID={host} sh -c {command}"
# As containers with networks of their own on one machine: they count as one host.
LAUNCHER_OF_ONE_HOST = "nsenter --target={host} --net --uts --ipc --mount -- sh -c {command}"
DEADLINE = 60


def clean_environment():
    for key in list(os.environ):
        if key.startswith(("TREERING_", "PMI", "OMPI", "SLURM")):
            del os.environ[key]


class LabCase(unittest.TestCase):
    """`lab` has the arguments of the Lab that all tests of the class use."""
    lab_options = {}

    @classmethod
    def setUpClass(cls):
        cls.lab = Lab(**cls.lab_options)
        cls.addClassCleanup(cls.lab.close)

    def perf(self, program, placement, *arguments, status=0, launcher=LAUNCHER, **variables):
        """Runs it with rank i on host placement[i]; its output."""
        hosts = ",".join(str(self.lab.holder_pid(host)) for host in placement)
        command = ["env", "-u", "TREERING_HOSTID", program, *arguments, "--hosts", hosts, "--launcher", launcher]
        process = self.lab.popen(placement[0], command, {"TREERING_TIMEOUT": "30", **variables},
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            output, errors = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            self.fail(f"{arguments} {variables}: not at its end after {DEADLINE} s\n{output}{errors}")
        self.assertEqual(process.returncode, status, f"{arguments} {variables}\n{output}{errors}")
        return output + errors

    def expect_rows(self, output, rows, in_place=True):
        """`rows` lines of measurements, none with wrong values."""
        found = [line.split() for line in output.splitlines() if line.strip() and not line.startswith(("#", " #"))]
        self.assertEqual(len(found), rows, output)
        for row in found:
            self.assertEqual((row[8], row[12]), ("0", "0" if in_place else "n/a"), output)


def main():
    clean_environment()
    try:
        Lab(2).close()
    except Unavailable as reason:
        print(f"no network namespaces here: {reason}")
        sys.exit(SKIP)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    unittest.main(argv=sys.argv[:1], verbosity=2)
