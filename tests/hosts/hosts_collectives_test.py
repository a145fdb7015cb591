#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every collective and every allreduce algorithm over several hosts, verified.

usage: hosts_collectives_test.py TREERING_PERF
"""
import os
import re
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
        self.expect_rows(output, rows, in_place=name not in ("alltoallv", "sendrecv"))
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

    def test_the_network_is_measured(self):
        text = self.perf(PERF, self.placement, "allreduce", "--explain", "-b", "8", "-e", "8")
        latency, work = re.search(r"([\d.]+) us between hosts, ([\d.]+) us of work a message", text).groups()
        self.assertNotEqual((latency, work), ("30.0", "2.5"), "what the model takes where nothing is measured")
        self.assertGreater(float(work), 0)
        self.assertLessEqual(float(work), float(latency))


    def test_the_network_is_as_the_user_says(self):
        text = self.perf(PERF, self.placement, "allreduce", "--explain", "-b", "8", "-e", "8", TREERING_LINK="25,7.5")
        self.assertRegex(text, r"25(\.0+)? Gbit/s")
        self.assertIn("7.5 us between hosts", text)


class ThreeHosts(Placements, lab_case.LabCase):
    lab_options = {"hosts": 3}
    placement = [2, 0, 1]
    algorithms = ["ring", "tree", "two-shot", "halving-doubling"]


class UnequalHosts(Placements, lab_case.LabCase):
    lab_options = {"hosts": 2}
    placement = [0, 0, 1, 0]
    collectives = ["reduce", "broadcast", "allgatherv", "reduce-scatter", "alltoallv", "gather", "scatterv"]
    algorithms = ["tree", "hierarchical", "hybrid", "ring-2d", "hybrid-ring"]


class Names(lab_case.LabCase):
    """As torchrun starts ranks, where the first host's own name is a loopback address to itself, as Debian sets it up."""
    lab_options = {"hosts": 2}

    def test_a_name_that_is_another_address_on_its_own_host(self):
        name = self.lab.names[0]
        command = f'printf "127.0.0.1 localhost\\n127.0.1.1 {name}\\n" >/etc/hosts && exec "$@"'
        program = [PERF, "allreduce", "-b", "4", "-e", "4", *ONCE]
        variables = {"WORLD_SIZE": "3", "MASTER_ADDR": name, "MASTER_PORT": "29500", "TREERING_TIMEOUT": "8"}
        results = self.lab.run_all([(0, ["sh", "-c", command, "sh", *program], {**variables, "RANK": "0"}),
                                    (0, ["sh", "-c", command, "sh", *program], {**variables, "RANK": "1"}),
                                    (1, program, {**variables, "RANK": "2"})], timeout=40)
        for result in results:
            self.assertEqual(result.status, 0, result.output)
        self.expect_rows(results[0].output, 1)


class NetworkNamespacesOfOneHost(lab_case.LabCase):
    lab_options = {"hosts": 2}

    def test_the_log_names_them_as_the_cause(self):
        for placement in ([0, 1], [0, 1, 0, 1]):
            output = self.perf(PERF, placement, "allreduce", "-b", "4", "-e", "4", *ONCE, TREERING_DEBUG="INFO",
                               launcher=lab_case.LAUNCHER_OF_ONE_HOST)
            lines = [line for line in output.splitlines() if re.search(r" rank \d reaches rank \d by ", line)]
            self.assertEqual(len(lines), len(placement), output)
            for line in lines:
                self.assertRegex(line, r"shared-memory: no segment \(ranks 0 and [13] are in different network namespaces,")
                self.assertNotIn("memfd_create", line)


class SmallSocketBuffers(lab_case.LabCase):
    """Sockets take less than a rank posts: every rank holds messages that others wait for while it waits for others."""
    lab_options = {"hosts": 4, "mbit": 50}
    placement = [0, 1, 2, 3]

    def test_creation_and_collectives(self):
        for host in self.placement:
            command = "for which in r w; do echo 4096 16384 32768 >/proc/sys/net/ipv4/tcp_${which}mem || exit; done"
            result, = self.lab.run_all([(host, ["sh", "-c", command])], timeout=20)
            self.assertEqual(result.status, 0, result.output)
        for algorithm in ("ring", "halving-doubling"):
            output = self.perf(PERF, self.placement, "allreduce", *sizes("allreduce", 4), *ONCE, TREERING_ALGO=algorithm)
            self.expect_rows(output, 3)
        self.expect_rows(self.perf(PERF, self.placement, "alltoall", *sizes("alltoall", 4), *ONCE), 2)


class Networks(lab_case.LabCase):
    lab_options = {"hosts": 2, "nics": 2}
    placement = [0, 1, 0, 1]

    def allreduce(self, *arguments, **variables):
        output = self.perf(PERF, self.placement, "allreduce", *sizes("allreduce", 4), *ONCE, *arguments, TREERING_DEBUG="INFO", **variables)
        self.expect_rows("\n".join(line for line in output.splitlines() if "treering" not in line.lower()), 3)
        return output

    def expect_offers(self, present, absent, **variables):
        """Every process says through which addresses it offers to be reached."""
        output = self.allreduce(**variables)
        offers = [line for line in output.splitlines() if " offers " in line]
        self.assertEqual(len(offers), len(self.placement) + 1, output)  # the launching process is the rendezvous root
        for line in offers:
            for text in present:
                self.assertIn(text, line)
            for text in absent:
                self.assertNotIn(text, line)

    def test_ipv6_only(self):
        self.expect_offers(["fd77:1:", "fd77:2:"], ["10.77."], TREERING_SOCKET_FAMILY="ipv6")

    def test_ipv4_only(self):
        self.expect_offers(["10.77.0.", "10.77.1."], ["fd77:", "fe80:"], TREERING_SOCKET_FAMILY="ipv4")

    def test_link_local_alone(self):
        self.expect_offers(["fe80:"], ["fd77:", "10.77."], TREERING_SOCKET_IFNAME="fe80::/10")

    def test_times_of_the_phases(self):
        lines = [line for line in self.allreduce().splitlines() if " is ready: rendezvous " in line]
        self.assertEqual(len(lines), len(self.placement), lines)
        for line in lines:
            for phase in ("shared memory", "infos of all ranks", "proofs of links", "reports of all ranks", "measurement of the network",
                          "schedules"):
                self.assertRegex(line, rf", {phase} \d+\.\d")
            times = [float(time) for time in re.findall(r" (\d+\.\d)(?:,| \(ms\))", line)]
            total = float(re.search(r", (\d+\.\d) in all", line).group(1))
            self.assertAlmostEqual(sum(times), total, delta=0.1 * len(times))

    def test_one_interface(self):
        self.expect_offers(["10.77.1.", "fd77:2:"], ["10.77.0.", "fd77:1:"], TREERING_SOCKET_IFNAME="eth1")
        self.expect_offers(["10.77.0."], ["10.77.1.", "fd77:"], TREERING_SOCKET_IFNAME="10.77.0.0/24")

    def test_what_is_sent_goes_through_one_interface(self):
        for used, unused in (("eth0", "eth1"), ("eth1", "eth0")):
            before = [self.sent_by(interface) for interface in (used, unused)]
            self.allreduce(TREERING_SOCKET_IFNAME=used)
            sent = [self.sent_by(interface) - earlier for interface, earlier in zip((used, unused), before)]
            self.assertGreater(sent[0], 1_000_000)
            self.assertLess(sent[1], 10_000)  # the kernel's own IPv6 packets

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
        self.perf(PERF, self.placement, "allreduce", "-b", "8M", "-e", "8M", *ONCE, TREERING_ALGO="ring")
        sent = [self.sent_by(interface) - earlier for interface, earlier in zip(("eth0", "eth1"), before)]
        self.assertGreater(min(sent), max(sent) / 4, sent)


if __name__ == "__main__":
    lab_case.main()
