#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A thousand ranks on one machine with the limits of a shell: they meet, sum and part, and need few descriptors.

usage: scale_test.py SCALE_RANK
"""
import math
import os
import sys
import unittest

import scale

PROGRAM = os.path.abspath(sys.argv[1])
MOST_DESCRIPTORS = 64    # of a process, besides data connections
# Sockets of a rank that carry data, for each of log2 n: a tree has three neighbours on each channel, and a pair of ranks
# two sockets each way.
CONNECTIONS_PER_LOG = 6


class Scale(unittest.TestCase):
    def check(self, processes, per_process, stack_kib, hosts=1):
        run = scale.Run(PROGRAM, processes, per_process, stack_kib=stack_kib, hosts=hosts)
        result = run.run()  # the ranks check the sums
        print(f"{processes} x {per_process} ranks on {hosts} host(s), stacks of {stack_kib} KiB: init {result.init_s:.2f} s, "
              f"{result.memory_bytes / run.ranks / 2**20:.2f} MiB a rank, {result.most_descriptors} descriptors, "
              f"{result.most_connections:.1f} data connections a rank", flush=True)
        self.assertLessEqual(result.most_descriptors, MOST_DESCRIPTORS)
        most = CONNECTIONS_PER_LOG * math.log2(run.ranks) if hosts > 1 else 0  # on one host all share memory
        self.assertLessEqual(result.most_connections, most)
        return result

    def test_64_processes_of_16_ranks(self):
        for stack_kib in (8192, 256):
            self.check(64, 16, stack_kib)

    def test_256_processes(self):
        self.check(256, 1, 256)

    def test_hosts(self):
        self.check(16, 16, 256, hosts=16)

    def test_1024_processes(self):
        for stack_kib in (8192, 256):
            self.check(1024, 1, stack_kib)

    def test_64_hosts(self):
        self.check(64, 16, 256, hosts=64)

    def test_a_failure_is_told(self):
        # That the helper sees failures at all.
        with self.assertRaisesRegex(scale.Failed, "algorithm"):
            scale.Run(PROGRAM, 2, 1, variables={"TREERING_ALGO": "nonsense"}).run()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
