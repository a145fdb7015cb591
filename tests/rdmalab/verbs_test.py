#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives over real verbs devices (soft-RoCE), between hosts of a guest machine. One boot for all tests. Each host has two devices;
ranks use the first one, but where a test says otherwise.

usage: verbs_test.py TREERING_PERF FORKING_RANK REUSED_BUFFERS [ucx]        of forking_rank.cpp, reused_buffers.cpp; ucx: that transport was built, too
"""

import functools
import os
import re
import signal
import sys
import threading
import time
import unittest

import rdmalab
from rdmalab import SKIP, RdmaLab, Unavailable

PERF = os.path.abspath(sys.argv[1])
FORKING_RANK = os.path.abspath(sys.argv[2])
REUSED_BUFFERS = os.path.abspath(sys.argv[3])
HAS_UCX = "ucx" in sys.argv[4:]
DEADLINE = 300  # of what takes seconds: the machine may be busy
TIMEOUT = 200  # of the ranks
HOSTS = 3
PORT = 5000
CHILD_SECONDS = 30  # for the kernel to end what a killed process had
MOST_ROWS = 1000  # that come before a failed link is noticed


class Verbs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lab = RdmaLab(hosts=HOSTS, devices=2)
        cls.addClassCleanup(cls.lab.close)

    def environment(self, transports, ranks, **variables):
        return {"TREERING_TRANSPORTS": transports, "TREERING_TIMEOUT": str(TIMEOUT), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0",
                "MASTER_ADDR": self.lab.address(0), "MASTER_PORT": str(PORT), **variables}

    def devices(self, host, rails):
        """UCX finds the devices of all hosts, but each host has its own. Their address (GID) is an IPv4 one, which UCX checks wrongly."""
        own = self.lab.device_name(host)
        return {"UCX_TLS": "rc_verbs,ud_verbs:aux", "UCX_NET_DEVICES": f"{own}:1", "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
                **({"TREERING_VERBS_DEVICES": f"={own}"} if rails == 1 else {})}

    def start(self, arguments, transports="verbs", per_host=1, hosts=HOSTS, on_output=lambda host, data: None, kib=None, rails=1,
              program=PERF, **variables):
        """A program with `per_host` ranks on each of `hosts` hosts. kib: what each may lock; None: all it likes, as root may."""
        ranks = per_host * hosts
        limited = ["bash", "-c", f'ulimit -l {kib}; exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock "$@"', "-"]
        command = [*(limited if kib is not None else []), program, *arguments]
        return [self.lab.start(rank // per_host, command, DEADLINE,
                               {"RANK": str(rank), **self.devices(rank // per_host, rails), **self.environment(transports, ranks, **variables)},
                               functools.partial(on_output, rank // per_host))
                for rank in range(ranks)]

    def rows(self, commands):
        """The rows of the table that rank 0 printed, when all ranks have succeeded."""
        results = [command.wait() for command in commands]
        for result in results:
            self.assertEqual(result.status, 0, "\n".join(one.output for one in results))
        lines = [line for line in results[0].output.splitlines() if line.strip() and not line.lstrip().startswith(("#", "treering "))]
        return [line.split() for line in lines]

    def expect_right(self, rows, count, transport):
        self.assertEqual(len(rows), count, rows)
        for row in rows:
            self.assertEqual(row[8], "0", row)
            self.assertIn(row[12], ("0", "n/a"), row)
            self.assertEqual(row[13].split("/")[2], transport, row)

    def test_collectives(self):
        for collective in ("allreduce", "allgather", "alltoall", "broadcast", "reducescatter"):
            with self.subTest(collective):
                rows = self.rows(self.start([collective, "-b", "8", "-e", "512K", "-f", "64", "-n", "2", "-w", "1"]))
                self.expect_right(rows, 3, "verbs")

    @unittest.skipUnless(HAS_UCX, "built without UCX")
    def test_collectives_over_ucx(self):
        for collective in ("allreduce", "alltoall"):
            with self.subTest(collective):
                rows = self.rows(self.start([collective, "-b", "8", "-e", "512K", "-f", "64", "-n", "2", "-w", "1"], transports="ucx"))
                self.expect_right(rows, 3, "ucx")

    def test_shared_memory_within_hosts_and_verbs_between_them(self):
        rows = self.rows(self.start(["allreduce", "-b", "8", "-e", "512K", "-f", "64", "-n", "2", "-w", "1"],
                                    transports="shared-memory,verbs", per_host=2, hosts=2))
        self.expect_right(rows, 3, "shm+verbs")

    # Nine ranks on two slow processors wait for one another from the first barrier on: what they ask meanwhile must not hold up the
    # introductions, which take the same connections.
    def test_queue_pairs_come_about_while_many_ranks_wait(self):
        # One device each: the guest has two processors for nine ranks that poll.
        rows = self.rows(self.start(["allreduce", "-b", "8", "-e", "64K", "-f", "8192", "-n", "1", "-w", "1"], per_host=3,
                                    TREERING_VERBS_DEVICES="=rxe0,=rxe2,=rxe4"))
        self.expect_right(rows, 2, "verbs")

    def test_lost_packets_are_sent_again(self):
        for host in range(HOSTS):
            self.lab.impair(host, 0, loss_percent=1)
        try:
            rows = self.rows(self.start(["allreduce", "-b", "64K", "-e", "64K", "-n", "5", "-w", "1"]))
        finally:
            for host in range(HOSTS):
                self.lab.impair(host, 0)
        self.expect_right(rows, 1, "verbs")

    def expect_killed_rank_named(self, transport):
        measured, output = threading.Event(), bytearray()

        def listen(host, data):
            output.extend(data if host == 0 else b"")
            if f"/{transport}/".encode() in output:  # the first row of the table
                measured.set()

        commands = self.start(["allreduce", "-b", "1K", "-e", "1K", "-N", "0"], transports=transport, on_output=listen)
        self.assertTrue(measured.wait(DEADLINE), output.decode(errors="replace"))
        commands[1].signal(signal.SIGKILL)
        results = [command.wait() for command in commands]
        self.assertEqual(results[1].status, -9)
        for rank in (0, 2):
            self.assertNotEqual(results[rank].status, 0, results[rank].output)
            self.assertIn("rank 1 (pid", results[rank].output)

    def test_a_killed_rank_is_named(self):
        self.expect_killed_rank_named("verbs")

    @unittest.skipUnless(HAS_UCX, "built without UCX")
    def test_a_killed_rank_is_named_over_ucx(self):
        self.expect_killed_rank_named("ucx")

    def queue_pairs(self, host):
        """The reliable ones of a host's devices."""
        links = tuple(f"link {self.lab.device_name(host, device)}/" for device in range(2))
        shown = self.lab.start(None, ["rdma", "resource", "show", "qp"], DEADLINE, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}).wait()
        self.assertEqual(shown.status, 0, shown.output)
        return [line for line in shown.output.splitlines() if line.startswith(links) and " type RC " in line]

    # A child has copies of the device's descriptors and mappings, by which the kernel would keep the queue pairs.
    def test_a_forked_child_that_outlives_its_parent_keeps_no_queue_pair_alive(self):
        printed = [threading.Event() for _ in range(2)]
        commands = [self.lab.start(rank, [FORKING_RANK], DEADLINE, {"RANK": str(rank), **self.environment("verbs", 2)},
                                   lambda data, event=event: event.set() if b"child " in data else None)
                    for rank, event in enumerate(printed)]
        try:
            self.assertTrue(printed[0].wait(DEADLINE), commands[0].output)
            child = re.search(r"child (\d+)\n", commands[0].output)[1]
            self.assertGreater(len(self.queue_pairs(0)), 0, commands[0].output)
            commands[0].signal(signal.SIGKILL)
            self.assertEqual(commands[0].wait().status, -9)
            deadline = time.monotonic() + CHILD_SECONDS
            while (left := self.queue_pairs(0)) and time.monotonic() < deadline:
                continue  # the question takes long enough
            lives = self.lab.start(0, ["/bin/kill", child], DEADLINE, {}).wait()
            self.assertEqual(left, [])
            self.assertEqual(lives.status, 0, lives.output)
        finally:
            for command in commands:
                command.signal(signal.SIGKILL)
                command.wait()

    def test_an_unknown_device_is_an_error_that_lists_what_there_is(self):
        for result in [command.wait() for command in self.start(["allreduce"], TREERING_VERBS_DEVICES="mlx5_7")]:
            self.assertNotEqual(result.status, 0)
            self.assertIn("TREERING_VERBS_DEVICES is 'mlx5_7'", result.output)
            for device in range(2):
                self.assertIn(f"{self.lab.device_name(result.host, device)} port 1", result.output)

    def packets(self, hosts):
        """What each device has received: {(host, device): packets}."""
        files = [f"/sys/class/infiniband/{self.lab.device_name(host, device)}/ports/1/hw_counters/rcvd_pkts"
                 for host in range(hosts) for device in range(2)]
        counts = self.lab.start(None, ["/bin/cat", *files], DEADLINE, {}).wait().output.split()
        self.assertEqual(len(counts), len(files), counts)
        return {(number // 2, number % 2): int(count) for number, count in enumerate(counts)}

    def test_large_messages_are_divided_over_both_devices(self):
        before = self.packets(2)
        commands = self.start(["allreduce", "-b", "8", "-e", "4M", "-f", "524288", "-n", "2", "-w", "1"], hosts=2, rails=2,
                              TREERING_DEBUG="INFO")
        self.expect_right(self.rows(commands), 2, "verbs")
        received = {key: count - before[key] for key, count in self.packets(2).items()}
        for host in range(2):
            # At least half of 4 MiB comes to each rank, three times, in packets of 4 KiB; acknowledgements besides.
            both = [received[host, 0], received[host, 1]]
            self.assertGreater(min(both), 3 * (1 << 20) // 4096, received)
            self.assertGreater(2 * min(both), max(both), received)
            self.assertIn(f"verbs uses {self.lab.device_name(0, host)} port 1", commands[0].output)

    def test_a_port_that_is_down_is_no_rail(self):
        self.lab.set_port(1, 1, False)
        try:
            commands = self.start(["allreduce", "-b", "64K", "-e", "256K", "-f", "2", "-n", "1", "-w", "1"], hosts=2, rails=2)
            self.expect_right(self.rows(commands), 3, "verbs")
        finally:
            self.lab.set_port(1, 1, True)

    def test_a_rail_that_reaches_no_peer_is_left_out(self):
        self.lab.cut(1, 1)
        try:
            commands = self.start(["allreduce", "-b", "64K", "-e", "256K", "-f", "2", "-n", "1", "-w", "1"], hosts=2, rails=2,
                                  TREERING_DEBUG="INFO")
            self.expect_right(self.rows(commands), 3, "verbs")
        finally:
            self.lab.heal(1, 1)
        self.assertIn(f"rank 0 uses fewer rails towards rank 1: no datagram came from {self.lab.device_name(1, 1)} port 1",
                      commands[0].output)

    def resent(self, host):
        """Packets that the first device of a host has sent again."""
        file = f"/sys/class/infiniband/{self.lab.device_name(host)}/ports/1/hw_counters/completer_retry_err"
        return int(self.lab.start(None, ["/bin/cat", file], DEADLINE, {}).wait().output)

    def expect_survived(self, fail, mend):
        """The link of host 1 fails while the hosts call, until they have stood still for 2 s. Then they go on."""
        moved, seen = threading.Condition(), bytearray()

        def listen(host, data):
            with moved:
                seen.extend(data if host == 0 else b"")
                moved.notify_all()

        def rows():
            return seen.count(b"/verbs/")

        def await_rows(count):
            with moved:
                self.assertTrue(moved.wait_for(lambda: rows() >= count, DEADLINE), seen.decode(errors="replace"))

        before = self.resent(0) + self.resent(1)
        commands = self.start(["allreduce", "-b", "64K", "-e", "64K", "-n", "20", "-N", "0"], hosts=2, on_output=listen)
        await_rows(1)
        fail()
        with moved:
            for known in range(rows(), rows() + MOST_ROWS):
                if not moved.wait_for(lambda: rows() > known, 2):
                    break
            else:
                self.fail(f"{MOST_ROWS} rows came by a link that had failed")
            known = rows()
        mend()
        await_rows(known + 1)
        for command in commands:
            command.signal(signal.SIGINT)
        measured = self.rows(commands)
        self.expect_right(measured, len(measured), "verbs")
        self.assertGreater(self.resent(0) + self.resent(1), before)

    def test_a_link_that_is_cut_for_less_than_the_retry_time_is_survived(self):
        self.expect_survived(lambda: self.lab.cut(1, 0), lambda: self.lab.heal(1, 0))

    def test_a_port_that_is_down_for_less_than_the_retry_time_is_survived(self):
        self.expect_survived(lambda: self.lab.set_port(1, 0, False), lambda: self.lab.set_port(1, 0, True))

    def test_a_rail_that_is_cut_fails_the_link_and_is_named(self):
        measured, output = threading.Event(), bytearray()

        def listen(host, data):
            output.extend(data if host == 0 else b"")
            if b"/verbs/" in output:
                measured.set()

        commands = self.start(["allreduce", "-b", "256K", "-e", "256K", "-N", "0"], hosts=2, rails=2, on_output=listen,
                              TREERING_VERBS_TIMEOUT="14")
        self.assertTrue(measured.wait(DEADLINE), output.decode(errors="replace"))
        self.lab.cut(1, 1)
        try:
            results = [command.wait() for command in commands]
        finally:
            self.lab.heal(1, 1)
        for result in results:
            self.assertNotEqual(result.status, 0, result.output)
        text = "\n".join(result.output for result in results)
        self.assertRegex(text, rf"by {self.lab.device_name(0, 1)} port 1 .* to {self.lab.device_name(1, 1)} port 1|"
                               rf"by {self.lab.device_name(1, 1)} port 1 .* to {self.lab.device_name(0, 1)} port 1")
        self.assertIn("transport retry counter exceeded", text)

    # Devices write to and read from pages, not addresses: with the registration of those that were there before, sums would be wrong.
    def test_buffers_that_are_used_again_are_registered_until_their_pages_change(self):
        results = [command.wait() for command in self.start([], hosts=2, program=REUSED_BUFFERS, TREERING_DEBUG="TRACE")]
        for result in results:
            self.assertEqual(result.status, 0, "\n".join(one.output for one in results))
            # Input and output of each of five sets of pages.
            self.assertGreaterEqual(result.output.count("has registered and watches the buffer"), 10, result.output)

    def test_without_locked_memory_the_error_names_the_limit(self):
        for result in [command.wait() for command in self.start(["allreduce"], kib=64)]:
            self.assertNotEqual(result.status, 0, result.output)
            self.assertIn("it must lock", result.output)
            self.assertIn("this process may lock 64 KiB of memory (ulimit -l)", result.output)

    def locked(self, kib, rails=1):
        """Runs 2 ranks that may lock so much: what rank 0 says that it locks (staging, for its peer), what it has, its output."""
        measured, output = threading.Event(), bytearray()

        def listen(host, data):
            output.extend(data if host == 0 else b"")
            if b"/verbs/" in output:
                measured.set()

        commands = self.start(["allreduce", "-b", "64K", "-e", "64K", "-N", "0"], hosts=2, kib=kib, rails=rails,
                              on_output=listen, TREERING_DEBUG="INFO", TREERING_WATCH_BUFFERS="0")
        self.assertTrue(measured.wait(DEADLINE), output.decode(errors="replace"))
        status = self.lab.start(0, ["bash", "-c", "grep -h VmPin $(grep -l 'Name:.treering-perf' /proc/[0-9]*/status)"], DEADLINE, {})
        pinned = status.wait().output
        for command in commands:
            command.signal(signal.SIGKILL)
        for command in commands:
            command.wait()
        text = output.decode(errors="replace")
        plan = re.search(r"verbs locks (\d+) KiB of staging memory and (\d+) KiB for each peer", text)
        self.assertIsNotNone(plan, text)
        return int(plan[1]), int(plan[2]), int(re.search(r"VmPin:\s*(\d+) kB", pinned)[1]), text

    def test_locked_memory_is_what_was_computed_before(self):
        staging, peer, pinned, text = self.locked(1 << 20)
        self.assertEqual(pinned, staging + peer, text)
        self.assertNotIn("places instead", text)
        self.assertIn("survives a link that is down for less than 6.4 s (TREERING_VERBS_TIMEOUT is 18, from TREERING_TIMEOUT)", text)
        # With less there are fewer places, and it works.
        limit = staging + peer * 3 // 4
        staging, peer, pinned, text = self.locked(limit)
        self.assertEqual(pinned, staging + peer, text)
        self.assertLessEqual(pinned, limit)
        self.assertIn("places instead of 8", text)

    def test_locked_memory_counts_both_devices(self):
        staging, peer, pinned, text = self.locked(1 << 20, rails=2)
        self.assertEqual(pinned, staging + peer, text)
        self.assertIn("by 2 rails together", text)
        # Where that is too much there is one rail.
        staging, peer, pinned, text = self.locked((staging + peer) // 2, rails=2)
        self.assertEqual(pinned, staging + peer, text)
        self.assertIn("by 1 of 2 rails", text)
        self.assertIn("it would lock more memory than there may be", text)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for key in list(os.environ):
        if key.startswith(("TREERING_", "PMI", "OMPI", "SLURM")):
            del os.environ[key]
    try:
        rdmalab.require()
    except Unavailable as reason:
        print(f"skipped: {reason}")
        sys.exit(SKIP)
    unittest.main(argv=sys.argv[:1], verbosity=2)
