#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""allreduce-perf on GPU memory: two ranks, 8 B to 64 MiB, by calls and by graphs; no value may be wrong.

usage: perf.py ALLREDUCE_PERF      exit status 77 (skipped), with the reason, where there is no GPU
"""

import subprocess
import sys

SKIPPED = 77
LIMIT_S = 270


def wrong_in(output):
    """What is not as it should be in the table, or nothing."""
    rows = [line.split() for line in output.splitlines() if line and not line.startswith("#")]
    if [int(row[0]) for row in rows] != [8 ** n for n in range(1, 9)]:
        return f"rows of {[row[0] for row in rows]} bytes"
    wrong = [row for row in rows if (row[8], row[12]) != ("0", "0")]
    return f"wrong values: {wrong}" if wrong else ""


def main():
    for words in ([], ["-G", "2", "-n", "3"]):
        command = [sys.argv[1], "--memory", "gpu", "-g", "2", "-b", "8", "-e", "64M", "-f", "8", *words]
        print(*command, flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
        if "no GPU can be used" in done.stderr:
            print(f"GPU suite not run: {done.stderr.strip()}")
            return SKIPPED
        print(done.stdout, done.stderr, sep="")
        if done.returncode != 0:
            return 1
        if problem := wrong_in(done.stdout):
            print(problem)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
