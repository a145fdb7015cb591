# SPDX-License-Identifier: Apache-2.0
"""Starts a communicator of many ranks on this machine, looks at its processes and ends it; for the test and the benchmark
of scale. Every process has the default limits of a shell, or what is given."""

import os
import re
import resource
import select
import signal
import time

PATIENCE = 240
CLEANED = ("TREERING_", "PMI", "OMPI", "SLURM")
ESTABLISHED = "01"  # of /proc/net/tcp


class Failed(Exception):
    pass


def read_lines(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def data_sockets(pid):
    """Inodes of the established TCP connections of the process's network."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in read_lines(f"/proc/{pid}/net/{name}")[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED:
                inodes.add(fields[9])
    return inodes


class Machine:
    """Cores and memory, for the tables."""

    def __init__(self):
        self.cores = len(os.sched_getaffinity(0))
        self.memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


class Result:
    """Seconds, of the steps of one run; bytes; counts of descriptors."""

    def __init__(self):
        self.start_s = self.init_s = self.small_s = self.large_s = self.destroy_s = 0.0
        self.memory_bytes = 0       # of all processes, shared pages counted once, with their page tables
        self.most_descriptors = 0   # of a process, besides data connections
        self.most_connections = 0   # of a rank: sockets that carry its data, both directions
        self.most_threads = 0       # of a process


class Run:
    """`processes` processes of `per_process` ranks each. hosts: so many, as if the machine were several."""

    def __init__(self, program, processes, per_process, stack_kib=8192, files=1024, hosts=1, variables=None):
        self.program, self.processes, self.per_process = program, processes, per_process
        self.ranks = processes * per_process
        self.stack_kib, self.files, self.hosts = stack_kib, files, hosts
        self.variables = variables or {}
        self._pids, self._ended, self._text, self._lines = [], set(), b"", []

    def run(self):
        result = Result()
        from_ranks, output = os.pipe()
        held, self._release = os.pipe()
        os.set_inheritable(output, True)
        os.set_inheritable(held, True)
        self._output, self._deadline = from_ranks, time.monotonic() + PATIENCE
        before = time.monotonic()
        try:
            self._start(0, "make", held, output)
            self._id = self._wait_for("id", 1)[0].split()[1]
            for process in range(1, self.processes):
                self._start(process, self._id, held, output)
            os.close(output)
            os.close(held)
            output = held = -1
            self._finish(result, before)
            return result
        finally:
            for fd in (output, held, self._release, from_ranks):
                if fd >= 0:
                    os.close(fd)
            self._end_all()

    def _finish(self, result, before):
        init = self._spans("init")
        # Processes start one after another: what counts is from the moment when the last of them has come.
        last_came = max(begin for begin, _ in init)
        result.start_s = last_came - before
        result.init_s = max(end for _, end in init) - last_came
        result.small_s, result.large_s = (self._duration(step) for step in ("small", "large"))
        self._wait_for("parked", self.processes)
        self._look(result)
        os.close(self._release)
        self._release = -1
        result.destroy_s = self._duration("destroy")
        for pid in list(self._pids):
            self._reap(pid)

    def _environment(self, process):
        kept = {key: value for key, value in os.environ.items() if not key.startswith(CLEANED)}
        kept.update({"TREERING_TIMEOUT": "180", **self.variables})
        if self.hosts > 1:
            kept["TREERING_HOSTID"] = f"scale-{process * self.hosts // self.processes}"
        return kept

    def _start(self, process, id_text, held, output):
        first = process * self.per_process
        arguments = [self.program, str(self.ranks), str(first), str(self.per_process), id_text]
        limits = {resource.RLIMIT_STACK: self.stack_kib * 1024, resource.RLIMIT_NOFILE: self.files}
        old = {what: resource.getrlimit(what) for what in limits}
        for what, soft in limits.items():
            hard = old[what][1]
            resource.setrlimit(what, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
        try:
            actions = [(os.POSIX_SPAWN_DUP2, held, 0), (os.POSIX_SPAWN_DUP2, output, 1),
                       (os.POSIX_SPAWN_CLOSE, held), (os.POSIX_SPAWN_CLOSE, output)]
            self._pids.append(os.posix_spawn(self.program, arguments, self._environment(process), file_actions=actions))
        finally:
            for what, values in old.items():
                resource.setrlimit(what, values)

    def _wait_for(self, word, count):
        """So many lines that begin with the word."""
        while True:
            found = [line for line in self._lines if line.startswith(word + " ")]
            if len(found) >= count:
                return found
            failed = [line for line in self._lines if line.startswith("failed ")]
            if failed:
                raise Failed("; ".join(failed[:3]))
            left = self._deadline - time.monotonic()
            ready = select.select([self._output], [], [], min(max(left, 0), 1))[0]
            chunk = os.read(self._output, 65536) if ready else None
            if chunk == b"" or left <= 0:
                raise Failed(f"{len(found)} of {count} processes said \"{word}\"" + (" in time" if left <= 0 else ""))
            if chunk:
                self._text += chunk
                *complete, self._text = self._text.split(b"\n")
                self._lines += [line.decode(errors="replace") for line in complete]
            else:
                self._look_for_ends()

    def _look_for_ends(self):
        for pid in list(self._pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._pids.remove(pid)
                if status != 0 and not any(line.startswith("failed ") for line in self._lines):
                    raise Failed(f"a process ended with wait status {status}")

    def _spans(self, word):
        return [tuple(map(float, line.split()[2:4])) for line in self._wait_for(word, self.processes)]

    def _duration(self, word):
        spans = self._spans(word)
        return max(end for _, end in spans) - min(begin for begin, _ in spans)

    def _look(self, result):
        for pid in self._pids:
            for line in read_lines(f"/proc/{pid}/smaps_rollup"):
                if line.startswith("Pss:"):
                    result.memory_bytes += int(line.split()[1]) * 1024
            for line in read_lines(f"/proc/{pid}/status"):
                if line.startswith("VmPTE:"):
                    result.memory_bytes += int(line.split()[1]) * 1024
            result.most_threads = max(result.most_threads, len(os.listdir(f"/proc/{pid}/task")))
        data = data_sockets("self")
        for pid in self._pids:
            others = connections = 0
            for name in os.listdir(f"/proc/{pid}/fd"):
                try:
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                except OSError:
                    continue
                inode = re.fullmatch(r"socket:\[(\d+)\]", target)
                if inode and inode.group(1) in data:
                    connections += 1
                else:
                    others += 1
            result.most_descriptors = max(result.most_descriptors, others)
            result.most_connections = max(result.most_connections, connections / self.per_process)

    def _reap(self, pid):
        _, status = os.waitpid(pid, 0)
        self._pids.remove(pid)
        if status != 0:
            raise Failed(f"a process ended with wait status {status}")

    def _end_all(self):
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        self._pids = []
