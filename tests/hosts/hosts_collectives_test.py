#!/usr/bin/env python3
"""Every collective and every allreduce algorithm over several hosts, verified.

usage: hosts_collectives_test.py TREERING_PERF
"""
import os
import sys
import unittest

import lab_case

PERF = os.path.abspath(sys.argv[1])
COLLECTIVES = ["allreduce", "reduce", "broadcast", "allgather", "reduce-scatter", "alltoall", "gather", "scatter",
               "barrier", "sendrecv", "allgatherv", "reduce-scatterv", "alltoallv", "gatherv", "scatterv"]
ALGORITHMS = ["ring", "tree", "two-shot", "recursive-doubling", "halving-doubling", "hierarchical", "hybrid", "ring-2d", "hybrid-ring"]
ONCE = ["-n", "1", "-w", "0", "-c", "1"]
SHARED_OUT = COLLECTIVES[3:8] + COLLECTIVES[10:]  # a size is divided among the ranks


def sizes(name, ranks):
    """1 element, 509 and 259081: odd numbers, of which the last is about 1 MiB; of each rank where it is divided."""
    return ["-b", str(4 * ranks if name in SHARED_OUT else 4), "-e", "1100000", "-f", "509"]


class Placements:
    """Rank i is on host placement[i]."""
    collectives = COLLECTIVES
    algorithms = ALGORITHMS

    def run_collective(self, name, *arguments, **variables):
        output = self.perf(PERF, self.placement, name, *sizes(name, len(self.placement)), *ONCE, *arguments, **variables)
        self.assertEqual(output.count("#  Rank"), len(self.placement), output)
        rows = 1 if name == "barrier" else 2 if name in SHARED_OUT else 3
        self.expect_rows(output, rows)
        return output

    def test_every_collective(self):
        for name in self.collectives:
            with self.subTest(name):
                self.run_collective(name)

    def test_every_algorithm(self):
        for algorithm in self.algorithms:
            with self.subTest(algorithm):
                self.run_collective("allreduce", TREERING_ALGO=algorithm)


class TwoHostsOfTwo(Placements, lab_case.LabCase):
    lab_options = {"hosts": 2}
    placement = [0, 0, 1, 1]

    def test_last_rank_as_root(self):
        for name in ("reduce", "gatherv"):
            with self.subTest(name):
                self.run_collective(name, "-r", "3")

    def test_ranks_in_turn_over_the_hosts(self):
        self.placement = [1, 0, 1, 0]
        for name in ("reduce-scatter", "alltoallv"):
            with self.subTest(name):
                self.run_collective(name)
        self.placement = [0, 1, 1, 0]
        for algorithm in ("ring", "hierarchical"):
            with self.subTest(algorithm):
                self.run_collective("allreduce", TREERING_ALGO=algorithm)

    def test_the_explanation_counts_the_hosts(self):
        text = self.perf(PERF, self.placement, "allreduce", "--explain", "-b", "1M", "-e", "1M")
        self.assertIn("2 hosts", text)


class ThreeHosts(Placements, lab_case.LabCase):
    lab_options = {"hosts": 3}
    placement = [2, 0, 1]
    algorithms = ["ring", "tree", "two-shot", "halving-doubling"]


class UnequalHosts(Placements, lab_case.LabCase):
    lab_options = {"hosts": 2}
    placement = [0, 0, 1, 0]
    collectives = ["reduce", "broadcast", "allgatherv", "reduce-scatter", "alltoallv", "gather", "scatterv"]
    algorithms = ["tree", "hierarchical", "hybrid", "ring-2d", "hybrid-ring"]


class Networks(lab_case.LabCase):
    lab_options = {"hosts": 2, "nics": 2}
    placement = [0, 1, 0, 1]

    def allreduce(self, *arguments, **variables):
        output = self.perf(PERF, self.placement, "allreduce", *sizes("allreduce", 4), *ONCE, *arguments, TREERING_DEBUG="INFO", **variables)
        self.expect_rows("\n".join(line for line in output.splitlines() if "treering" not in line.lower()), 3)
        return output

    def test_ipv6_only(self):
        self.assertNotIn("10.77.", self.allreduce(TREERING_SOCKET_FAMILY="ipv6"))

    def test_ipv4_only(self):
        self.assertNotIn("fd77:", self.allreduce(TREERING_SOCKET_FAMILY="ipv4"))

    def test_one_interface(self):
        self.assertNotIn("10.77.0.", self.allreduce(TREERING_SOCKET_IFNAME="eth1"))
        self.assertNotIn("10.77.1.", self.allreduce(TREERING_SOCKET_IFNAME="10.77.0.0/24"))

    def test_an_interface_that_is_not_there(self):
        output = self.perf(PERF, self.placement, "allreduce", *ONCE, status=1, TREERING_SOCKET_IFNAME="wlan")
        self.assertIn("wlan", output)

    def test_range_of_ports(self):
        self.allreduce(TREERING_PORT="41000-41007")

    def test_range_of_ports_that_is_too_small(self):
        output = self.perf(PERF, self.placement, "allreduce", *ONCE, status=1, TREERING_PORT="41000", TREERING_TIMEOUT="3")
        self.assertIn("41000", output)

    def test_streams(self):
        self.allreduce(TREERING_TCP_STREAMS="4")
        self.allreduce(TREERING_TCP_STREAMS="1")

    def sent_by(self, interface):
        return int(self.lab.run_all([(0, ["awk", "-v", f"name={interface}:", "$1 == name { print $10 }",
                                          "/proc/self/net/dev"])], timeout=20)[0].output)

    def test_streams_are_spread_over_the_interfaces(self):
        before = [self.sent_by(interface) for interface in ("eth0", "eth1")]
        self.perf(PERF, self.placement, "allreduce", "-b", "8M", "-e", "8M", *ONCE, TREERING_TCP_STREAMS="2",
                  TREERING_ALGO="ring")
        sent = [self.sent_by(interface) - earlier for interface, earlier in zip(("eth0", "eth1"), before)]
        self.assertGreater(min(sent), max(sent) / 4, sent)


if __name__ == "__main__":
    lab_case.main()
