# SPDX-License-Identifier: Apache-2.0
"""Hosts with real verbs devices (soft-RoCE, in a guest machine) for the fault injection: they do what network.Hosts does."""

import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rdmalab"))
import rdmalab  # noqa: E402

LIMIT = 120  # seconds of a process
STAMPED = re.compile(r"^(\d+\.\d+) (-?\d+ \w+)(.*)$", re.DOTALL)
BEGAN = re.compile(r"^( \d+) (\d+\.\d+)(.*)$", re.DOTALL)


class Input:
    def __init__(self, command):
        self._command = command

    def write(self, data):
        self._command.write(data.decode())

    def close(self):
        pass


class Process:
    """A faults_rank in the guest, as a subprocess.Popen. The times that it tells are moved to this machine's clock."""

    def __init__(self, lab, host, argv, environment):
        reader, self._writer = os.pipe()
        self.stdout = os.fdopen(reader, "rb", buffering=0)
        self.pid, self._rest, self._offset = -1, b"", None
        self._command = lab.start(host, argv, LIMIT, environment, self._take, has_input=True)
        self.stdin = Input(self._command)

    # By the thread that reads what the guest says.
    def _take(self, data):
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            os.write(self._writer, self._moved(line.decode(errors="replace")).encode() + b"\n")

    def _moved(self, line):
        found = STAMPED.match(line)
        if not found:
            return line
        when, head, rest = float(found[1]), found[2], found[3]
        if head.endswith(" ready"):
            self.pid = int(rest)
        if self._offset is None:
            self._offset = time.monotonic() - when
        if head.endswith(" error") and (began := BEGAN.match(rest)):
            rest = f"{began[1]} {float(began[2]) + self._offset:.6f}{began[3]}"
        return f"{when + self._offset:.6f} {head}{rest}"

    def poll(self):
        if self._command.running():
            return None
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None
        return self._command.wait().status

    def wait(self, timeout):
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("faults_rank", timeout)
            time.sleep(min(0.02, timeout))
        return status

    def send_signal(self, number):
        self._command.signal(number)

    def kill(self):
        self.send_signal(9)


class Lab:
    def __init__(self, lab):
        self._lab = lab
        self.hosts, self.names = lab.hosts, lab.names

    def popen(self, host, argv, environment, **_):
        own = {key: value.format(host=host) for key, value in environment.items()}
        return Process(self._lab, host, argv, own)


class GuestHosts:
    """A guest that many runs use one after the other."""

    def __init__(self, hosts=3):
        self._guest = rdmalab.RdmaLab(hosts)
        self.lab = Lab(self._guest)
        self._undo = []

    def close(self):
        self._guest.close()

    def restore(self):
        while self._undo:
            self._undo.pop()()

    def take_data_down(self, hosts):
        """The verbs devices' ports; the control network stays."""
        for host in hosts:
            self._guest.set_port(host, 0, False)
        self._undo.append(lambda: [self._guest.set_port(host, 0, True) for host in hosts])

    def lose_data(self, percent):
        for host in range(self.lab.hosts):
            self._guest.impair(host, 0, loss_percent=percent)
        self._undo.append(lambda: [self._guest.impair(host, 0) for host in range(self.lab.hosts)])

    @staticmethod
    def names_in_shared_memory():
        return []

    @staticmethod
    def lacks():
        return {}
