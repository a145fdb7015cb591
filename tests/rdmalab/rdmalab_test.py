#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Self-test of rdmalab: hosts have their own verbs devices, which reach one another, and nothing is left behind. Two boots,
the first only where TREERING_LONG_TESTS=1."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent import futures
from unittest import mock

import rdmalab
from rdmalab import SKIP, RdmaLab, Unavailable

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE = 300  # of what takes seconds: the machine may be busy
PINGPONG_PORT = 18515

TCP_SERVER = """
import socket, sys
for family, address in ((socket.AF_INET, sys.argv[1]), (socket.AF_INET6, sys.argv[2])):
    server = socket.socket(family)
    server.bind((address, 5000))
    server.listen()
    peer, total = server.accept()[0], 0
    while data := peer.recv(1 << 16):
        total += len(data)
    print(total)
"""
TCP_CLIENT = """
import socket, sys, time
for address in sys.argv[1:]:
    while True:
        try:
            peer = socket.create_connection((address, 5000))
            break
        except OSError:
            time.sleep(0.01)
    peer.sendall(bytes(1 << 20))
    peer.close()
"""


def processes_with(text):
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and int(entry) != os.getpid():
                with open(f"/proc/{entry}/cmdline") as file:
                    if text in file.read():
                        found.append(int(entry))
    return found


def wait_until_gone(folder):
    """Whether neither the guest's folder nor a process that names it is there any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not os.path.exists(folder) and not processes_with(folder):
            return True
        time.sleep(0.01)
    return False


class RdmaLabTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.environ.get("TREERING_LONG_TESTS") != "1":
            raise unittest.SkipTest("a boot of the lab for its own tests; rdmalab_verbs boots it, too (set TREERING_LONG_TESTS=1)")
        begin = time.monotonic()
        cls.lab = RdmaLab(hosts=2, devices=2)
        print(f"booted in {time.monotonic() - begin:.1f} s", flush=True)

    @classmethod
    def tearDownClass(cls):
        assert len(processes_with(cls.lab.folder)) == 1, "QEMU"
        cls.lab.close()
        cls.lab.close()
        assert wait_until_gone(cls.lab.folder)

    def shell(self, host, script, timeout=DEADLINE):
        return self.lab.run_all([(host, ["bash", "-c", script])], timeout)[0]

    def output_of(self, host, script):
        result = self.shell(host, script)
        self.assertEqual((result.status, result.timed_out), (0, False), result.output)
        return result.output

    def pingpong(self, device, gid, count=100, is_lossy=False):
        """Seconds that so many round trips of 4 KiB take. is_lossy: the last acknowledgement of either end may be lost. The other has
        all messages, has ended and answers no more, and this one would send again for ever: soft-RoCE takes ibv_rc_pingpong's retry
        count of 7 as endless. So the first to end counts."""
        options = ["ibv_rc_pingpong", "-g", gid, "-n", count, "-s", 4096, "-d"]
        server = self.lab.start(0, [*options, self.lab.device_name(0, device)], DEADLINE)
        self.output_of(0, f"until ss -Hltn sport = :{PINGPONG_PORT} | grep -q .; do sleep 0.1; done")
        client = self.lab.start(1, [*options, self.lab.device_name(1, device), self.lab.names[0]], DEADLINE)
        with futures.ThreadPoolExecutor(2) as waiters:
            waits = {waiters.submit(end.wait): end for end in (server, client)}
            ended, late = futures.wait(waits, return_when=futures.FIRST_COMPLETED if is_lossy else futures.ALL_COMPLETED)
            for wait in late:
                waits[wait].signal(signal.SIGKILL)
            results = [wait.result() for wait in ended]
            killed = [wait.result() for wait in late]
        for result in results:
            self.assertEqual((result.status, result.timed_out), (0, False), result.output)
        for result in killed:
            self.assertIn(result.status, (0, -signal.SIGKILL), result.output)
        return float(re.search(r"iters in ([0-9.]+) seconds", results[0].output)[1])

    def test_hosts_have_their_own_devices(self):
        names = [[self.lab.device_name(host, device) for device in range(2)] for host in range(2)]
        seen = []
        for host in range(2):
            words = self.output_of(host, "echo $RDMALAB_DEVICES; echo $(ls /sys/class/infiniband); "
                                         "ls /dev/infiniband | grep uverbs; cat /sys/class/infiniband/*/ports/1/gids/1").splitlines()
            self.assertEqual(words[:2], [",".join(names[host]), " ".join(names[host])])
            seen += words[2:4]
            gids = [bytes.fromhex(line.replace(":", ""))[-4:] for line in words[4:]]
            self.assertEqual([".".join(map(str, gid)) for gid in gids], [self.lab.device_address(host, d) for d in range(2)])
        self.assertEqual(len(set(seen)), 4, seen)

    @unittest.skipUnless(shutil.which("ibv_devices"), "no ibverbs-utils")
    def test_libibverbs_finds_them(self):
        for host in range(2):
            self.assertEqual(re.findall(r"^ +(rxe\d+)", self.output_of(host, "ibv_devices"), re.MULTILINE),
                             [self.lab.device_name(host, device) for device in range(2)])

    def test_hosts_differ(self):
        script = "hostname; echo $(ls /sys/class/net); echo $RDMALAB_HOST $TREERING_HOSTID; " \
                 "touch /dev/shm/of-$(hostname); ls /dev/shm; readlink /proc/self/ns/{net,pid,ipc,uts,mnt}; ls /proc | grep -c '^[0-9]'"
        seen = []
        for host in range(2):
            *lines, processes = self.output_of(host, script).splitlines()
            name = self.lab.names[host]
            self.assertEqual(lines[:4], [name, "eth0 lo", f"{host} {name}", f"of-{name}"])
            self.assertLess(int(processes), 10)
            seen += lines[4:]
        self.assertEqual(len(set(seen)), 10, seen)

    def test_tcp_between_hosts(self):
        addresses = [self.lab.address(0), self.lab.address(0, family=6)]
        results = self.lab.run_all([(0, [sys.executable, "-c", TCP_SERVER, *addresses]),
                                    (1, [sys.executable, "-c", TCP_CLIENT, *addresses])], DEADLINE)
        self.assertEqual([(result.status, result.output) for result in results], [(0, f"{1 << 20}\n" * 2), (0, "")])

    @unittest.skipUnless(shutil.which("ibv_rc_pingpong"), "no ibverbs-utils")
    def test_devices_reach_one_another_also_with_loss(self):
        self.pingpong(device=0, gid=0)
        calm = self.pingpong(device=1, gid=1)
        self.lab.impair(1, 1, loss_percent=5)
        lossy = self.pingpong(device=1, gid=1, is_lossy=True)
        dropped = int(re.search(r"dropped (\d+)", self.output_of(None, "tc -s qdisc show dev h1d1"))[1])
        print(f"100 round trips of 4 KiB: {calm:.2f} s, with {dropped} packets lost {lossy:.2f} s", flush=True)
        self.assertGreater(dropped, 0)
        self.lab.impair(1, 1, mbit=2)
        self.assertGreater(self.pingpong(device=1, gid=1), 1.5)

    def test_a_cut_link_carries_nothing_until_it_heals(self):
        def connect(timeout):
            return self.shell(0, f"timeout {timeout} bash -c 'echo >/dev/tcp/{self.lab.names[1]}/9'").status
        self.assertEqual(connect(DEADLINE), 1, "refused")
        self.lab.cut(1, None)
        self.assertEqual(connect(2), 124)
        self.lab.heal(1, None)
        self.assertEqual(connect(DEADLINE), 1, "refused")

    def test_a_port_goes_down_and_up(self):
        for up, state in ((False, "DOWN"), (True, "ACTIVE")):
            self.lab.set_port(0, 1, up)
            file = f"/sys/class/infiniband/{self.lab.device_name(0, 1)}/ports/1/state"
            self.output_of(0, f"until grep {state} {file}; do sleep 0.1; done")

    def test_status_and_output_are_those_of_the_command(self):
        self.assertEqual(self.shell(0, "echo out; echo err >&2; exit 7"), (0, 7, "out\nerr\n", False))
        self.assertEqual(self.shell(1, "kill -SEGV $$").status, -signal.SIGSEGV)
        self.assertEqual(self.shell(None, "head -c 1000000 /dev/zero | tr '\\0' x").output, "x" * 1000000)
        self.assertEqual(self.lab.run_all([(0, ["/nonexistent/program"])], DEADLINE)[0].status, 127)
        ranks = self.lab.run("echo $RDMALAB_RANK of $RDMALAB_RANKS on $RDMALAB_HOST; pwd", DEADLINE, per_host=2)
        self.assertEqual([result.output for result in ranks],
                         [f"{rank} of 4 on {rank // 2}\n{os.getcwd()}\n" for rank in range(4)])

    def test_results_stay_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            self.output_of(0, f"echo kept >$RDMALAB_RESULTS/file; echo lost >{folder}/file; cat {folder}/file")
            self.assertEqual(os.listdir(folder), [])
        with open(os.path.join(self.lab.results, "file")) as file:
            self.assertEqual(file.read(), "kept\n")

    def test_deadline_and_signal_end_all_of_a_command(self):
        sleeping = "grep -qsx sleep /proc/[0-9]*/comm"
        result = self.shell(0, "echo begun; sleep 1234 & sleep 1234; :", timeout=1)
        self.assertEqual((result.timed_out, result.status), (True, -signal.SIGKILL))
        self.assertIn(result.output, ("begun\n", ""), "a busy machine may take longer to begin")
        command = self.lab.start(0, ["sleep", 1234], DEADLINE)
        self.output_of(0, f"until {sleeping}; do sleep 0.1; done")
        command.signal(signal.SIGTERM)
        self.assertEqual(command.wait().status, -signal.SIGTERM)
        self.assertNotEqual(self.shell(0, sleeping).status, 0)
        script, ready = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done", threading.Event()
        command = self.lab.start(0, ["bash", "-c", script], DEADLINE, on_output=lambda _: ready.set())
        self.assertTrue(ready.wait(DEADLINE))
        command.signal(signal.SIGTERM)
        self.assertEqual(command.wait().status, 3, "the program's own answer to the signal")

    def test_the_command_has_the_first_failures_status(self):
        said = io.StringIO()
        script = "printf rank$RDMALAB_RANK; test $RDMALAB_RANK != 3 || exit 5"
        with mock.patch("rdmalab.RdmaLab", lambda *_: contextlib.nullcontext(self.lab)), contextlib.redirect_stdout(said):
            status = rdmalab.main(["run", "--per-host", "2", "--", "sh", "-c", script])
        self.assertEqual(status, 5)
        self.assertEqual(said.getvalue().count("rank"), 4, said.getvalue())


class WithoutLabTest(unittest.TestCase):
    def test_nothing_is_left_after_sigkill(self):
        command = [sys.executable, os.path.join(HERE, "rdmalab.py"), "run", "--hosts", "1", "--",
                   "sh", "-c", "echo $RDMALAB_RESULTS; sleep 1234"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        folder = os.path.dirname(process.stdout.readline().split()[-1])
        self.assertEqual(len(processes_with(folder)), 1)
        process.kill()
        process.wait()
        process.stdout.close()
        self.assertTrue(wait_until_gone(folder), folder)

    def test_without_qemu_it_is_unavailable(self):
        said = io.StringIO()
        with mock.patch.dict(os.environ, PATH="/nonexistent"), contextlib.redirect_stderr(said):
            with self.assertRaisesRegex(Unavailable, "qemu-system-x86.*tools/packages"):
                RdmaLab()
            self.assertEqual(rdmalab.main(["run", "true"]), SKIP)
        self.assertIn("unavailable", said.getvalue())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        rdmalab.require()
    except Unavailable as reason:
        print(f"skipped: {reason}")
        sys.exit(SKIP)
    unittest.main(verbosity=2)
