# SPDX-License-Identifier: Apache-2.0
"""What the tests of failures between hosts share: ranks as processes of hosts_rank, and what is expected of them.

The program is the first argument of the test.
"""
import os
import signal
import subprocess
import sys
import threading
import time

import lab_case

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from attempts import InThreeAttempts  # noqa: E402

RANK = os.path.abspath(sys.argv[1])
TIMEOUT = 8
REMOTE_ERROR, TIMED_OUT = 6, 8
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, 66}  # 66: tests/run has sanitizers end so
ESTABLISHED = "01"  # in /proc/net/tcp


class Rank:
    """A process of hosts_rank and the lines that it has printed."""

    def __init__(self, lab, host, rank, ranks, id_text, mode, argument=0, **variables):
        self.rank, self.host, self.lines, self.calls, self.ended = rank, host, [], [], None
        self._changed = threading.Condition()
        self.process = lab.popen(host, [RANK, str(rank), str(ranks), id_text, mode, str(argument)],
                                 {"TREERING_TIMEOUT": str(TIMEOUT), **variables},
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                if line == "goes-on\n":
                    self.calls.append(time.monotonic())
                else:
                    self.lines.append((time.monotonic(), line.rstrip("\n")))
                self._changed.notify_all()
        with self._changed:
            self.ended = time.monotonic()
            self._changed.notify_all()

    def tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def find(self, word):
        """(when, rest of the line) of the first line that begins with the word."""
        for when, line in self.lines:
            if line.split(" ", 1)[0] == word:
                return when, line.partition(" ")[2]
        return None

    def wait_for(self, word, timeout=30):
        with self._changed:
            self._changed.wait_for(lambda: self.find(word) or self.ended, timeout)
            found = self.find(word)
        if found is None:
            raise AssertionError(f"rank {self.rank} has not said \"{word}\" within {timeout} s: {self.text()}")
        return found

    def wait_for_text(self, words, timeout=30):
        with self._changed:
            if not self._changed.wait_for(lambda: words in self.text() or self.ended, timeout) or words not in self.text():
                raise AssertionError(f"rank {self.rank} has not said \"{words}\" within {timeout} s: {self.text()}")

    def wait_until_it_goes_on(self, since, timeout=30):
        """Until it has begun calls after that moment and done them: the first line may tell of one that began before."""
        def has_done_calls():
            return len(self.calls) > 2 and self.calls[-3] > since
        with self._changed:
            self._changed.wait_for(lambda: has_done_calls() or self.find("error") or self.ended, timeout)
        if self.find("error") or not has_done_calls():
            raise AssertionError(f"rank {self.rank} does not go on: {self.text()}")

    def connections(self):
        """The connections of its network: both ends -> (bytes that are not acknowledged, bytes that are not read, times sent again)."""
        found = {}
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self.pid}/net/{table}", encoding="ascii") as lines:
                for words in [line.split() for line in lines][1:]:
                    sent, received = (int(word, 16) for word in words[4].split(":"))
                    ends = tuple(end.removeprefix("0000000000000000FFFF0000") for end in words[1:3])  # IPv4 in IPv6
                    if words[3] == ESTABLISHED:
                        found[ends] = sent, received, int(words[6], 16)
        return found

    def count_connections_to(self, other):
        there = other.connections()
        return sum((remote, local) in there for local, remote in self.connections())

    def error(self, timeout):
        """(when, code, text)"""
        when, rest = self.wait_for("error", timeout)
        code, _, text = rest.split(" ", 2)
        return when, int(code), text

    def text(self):
        return "\n".join(line for _, line in self.lines)

    @property
    def pid(self):
        return self.process.pid


class RankCase(InThreeAttempts, lab_case.LabCase):
    def start(self, mode="loop", argument=0, hosts=(0, 1, 2), left_out=(), modes=None, id_text="make", **variables):
        ranks = {}
        for rank, host in enumerate(hosts):
            if rank in left_out:
                continue
            ranks[rank] = Rank(self.lab, host, rank, len(hosts), id_text, (modes or {}).get(rank, mode), argument,
                               **variables)
            self.addCleanup(self.end, ranks[rank])
            if id_text == "make":
                id_text = ranks[rank].wait_for("id")[1]
        return ranks

    def wait_until(self, condition, timeout=30, times=10):
        """Until it holds whenever it is asked, `times` times in 20 ms each."""
        end = time.monotonic() + timeout
        held = 0
        while held < times:
            self.assertLess(time.monotonic(), end, "it does not come true")
            held = held + 1 if condition() else 0
            time.sleep(0.02)

    def wait_until_taken_in(self, rank):
        """What tells it before all ranks are there: it is connected, and nothing is on its way."""
        def is_connected_and_quiet():
            found = rank.connections().values()
            return found and not any(sent or received for sent, received, _ in found)
        self.wait_until(is_connected_and_quiet, times=25)

    def wait_until_all_go_on(self, ranks, since=None):
        """Calls are done, and every connection has answered again: TCP tries again at ever longer intervals."""
        since = since or time.monotonic()
        for rank in ranks:
            rank.wait_until_it_goes_on(since)
        self.wait_until(lambda: not any(again for rank in ranks for *_, again in rank.connections().values()))

    @staticmethod
    def end(rank):
        rank.process.stdin.close()
        if rank.process.poll() is None:
            rank.process.kill()
        if rank.process.wait() in CRASHES:
            raise RuntimeError(f"rank {rank.rank} crashed, or a sanitizer ended it: {rank.process.returncode}\n{rank.text()}")

    def expect_one_verdict(self, ranks, since, limit, code=None, afterwards=None, met=True):
        """Every one of them returns an error within `limit` seconds, with the same text, which is returned; and ends."""
        texts = set()
        for rank in ranks:
            when, got, text = rank.error(limit + 15)
            self.assertLess(when - since, limit, f"rank {rank.rank}: {text}")
            if code is not None:
                self.assertEqual(got, code, text)
            texts.add(text)
        self.assertEqual(len(texts), 1, texts)
        if afterwards:
            afterwards()
        for rank in ranks:
            self.expect_clean_end(rank, met)
        return texts.pop()

    def expect_clean_end(self, rank, met=True, threads_of_library=1):
        sockets, threads = map(int, rank.wait_for("left", 10)[1].split())
        if met or rank.rank != 0:  # the rendezvous root goes on to tell those who come late
            self.assertEqual(sockets, 0, rank.text())
        self.assertLessEqual(threads, threads_of_library, rank.text())
        self.assertEqual(rank.process.wait(timeout=10), 0, rank.text())

    def expect_names(self, text, rank, operation=True):
        self.assertIn(f"rank {rank.rank} (pid {rank.pid} on {self.lab.names[rank.host]}", text)
        if operation:
            self.assertRegex(text, r"operation \d+ \(allreduce of \d+ x float")
