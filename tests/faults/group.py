# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: started on the hosts of a Lab, told by their standard input, read until a time."""

import dataclasses
import os
import selectors
import signal
import subprocess
import threading
import time


@dataclasses.dataclass
class Line:
    when: float
    rank: int
    word: str
    rest: str


@dataclasses.dataclass
class Process:
    pid: int
    host: int
    ranks: list
    lines: list = dataclasses.field(default_factory=list)   # Line
    log: list = dataclasses.field(default_factory=list)     # other lines: the library's
    status: object = None                                   # exit status; None: it has not ended by itself
    expected_signal: bool = False                           # the driver has killed it
    handle: object = None
    _rest: bytes = b""

    def take(self, data):
        *whole, self._rest = (self._rest + data).split(b"\n")
        for raw in whole:
            text = raw.decode(errors="replace")
            parts = text.split(" ", 3)
            try:
                self.lines.append(Line(float(parts[0]), int(parts[1]), parts[2], parts[3] if len(parts) > 3 else ""))
            except (ValueError, IndexError):
                self.log.append(text)

    def has(self, word, rank=None):
        return any(line.word == word and (rank is None or line.rank == rank) for line in self.lines)


class Stopped(Exception):
    """The driver ends: no run goes on."""


class Group:
    stopping = threading.Event()

    def __init__(self, lab, program):
        self._lab, self._program = lab, program
        self._selector = selectors.DefaultSelector()
        self.processes = []

    def start(self, host, ranks, arguments, environment):
        # In a session of its own: the kernel lets the stopped processes of a shell's job run when the shell ends.
        handle = self._lab.popen(host, [self._program, *arguments], environment, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, start_new_session=True)
        os.set_blocking(handle.stdout.fileno(), False)
        process = Process(handle.pid, host, ranks, handle=handle)
        self._selector.register(handle.stdout, selectors.EVENT_READ, process)
        self.processes.append(process)
        return process

    def pump(self, until):
        """Reads what the processes say until `until`, or returns earlier when something came."""
        if self.stopping.is_set():
            raise Stopped
        for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
            try:
                data = os.read(key.fileobj.fileno(), 1 << 16)
            except BlockingIOError:
                continue
            if data:
                key.data.take(data)
                key.data.pid = key.data.handle.pid  # a guest tells it late
            else:
                self._selector.unregister(key.fileobj)
        if not self._selector.get_map():
            time.sleep(max(0.0, min(0.02, until - time.monotonic())))
        for process in self.processes:
            if process.status is None:
                process.status = process.handle.poll()

    def wait(self, condition, deadline):
        """Whether `condition()` came true by then."""
        while not condition():
            if time.monotonic() >= deadline:
                return False
            self.pump(min(deadline, time.monotonic() + 0.1))
        return True

    def sleep(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.pump(until)

    def tell(self, processes, line):
        for process in processes:
            try:
                process.handle.stdin.write(line.encode() + b"\n")
            except (BrokenPipeError, OSError):
                pass  # it has ended

    def process_of(self, rank):
        return next(process for process in self.processes if rank in process.ranks)

    def kill(self, process, how=signal.SIGKILL):
        if process.handle.poll() is None:
            process.expected_signal |= how == signal.SIGKILL
            process.handle.send_signal(how)

    def drain(self):
        """What is in the pipes already."""
        for _ in range(100):
            before = sum(len(process.lines) for process in self.processes)
            self.pump(time.monotonic() + 0.02)
            if sum(len(process.lines) for process in self.processes) == before:
                return

    def close(self):
        for process in self.processes:
            if process.handle.poll() is None:
                process.expected_signal = True
                process.handle.kill()
        for process in self.processes:
            process.handle.wait(timeout=10)
            for stream in (process.handle.stdin, process.handle.stdout):
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self._selector.close()
