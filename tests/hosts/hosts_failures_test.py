#!/usr/bin/env python3
"""Ranks on several hosts that die, stop, leave or are cut off: the others end in time, with words that say who.

usage: hosts_failures_test.py HOSTS_RANK
"""
import os
import signal
import subprocess
import sys
import threading
import time

import lab_case

RANK = os.path.abspath(sys.argv[1])
TIMEOUT = 8
REMOTE_ERROR, TIMED_OUT = 6, 8
SIZES = {"tiny": 2, "middle": 20_000, "large": 1_000_000}


class Rank:
    """A process of hosts_rank and the lines that it has printed."""

    def __init__(self, lab, host, rank, ranks, id_text, mode, argument=0, **variables):
        self.rank, self.host, self.lines, self.ended = rank, host, [], None
        self._changed = threading.Condition()
        self.process = lab.popen(host, [RANK, str(rank), str(ranks), id_text, mode, str(argument)],
                                 {"TREERING_TIMEOUT": str(TIMEOUT), **variables},
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self._changed.notify_all()
        with self._changed:
            self.ended = time.monotonic()
            self._changed.notify_all()

    def find(self, word):
        """(when, rest of the line) of the first line that begins with the word."""
        for when, line in self.lines:
            if line.split(" ", 1)[0] == word:
                return when, line.partition(" ")[2]
        return None

    def wait_for(self, word, patience=30):
        with self._changed:
            self._changed.wait_for(lambda: self.find(word) or self.ended, patience)
            found = self.find(word)
        if found is None:
            raise AssertionError(f"rank {self.rank} has not said \"{word}\" within {patience} s: {self.text()}")
        return found

    def error(self, patience):
        """(when, code, text)"""
        when, rest = self.wait_for("error", patience)
        code, _, text = rest.split(" ", 2)
        return when, int(code), text

    def text(self):
        return "\n".join(line for _, line in self.lines)

    @property
    def pid(self):
        return self.process.pid


class Failures(lab_case.LabCase):
    lab_options = {"hosts": 3}

    def start(self, mode="loop", argument=0, hosts=(0, 1, 2), left_out=(), modes=None, **variables):
        ranks = {}
        id_text = "make"
        for rank, host in enumerate(hosts):
            if rank in left_out:
                continue
            ranks[rank] = Rank(self.lab, host, rank, len(hosts), id_text, (modes or {}).get(rank, mode), argument,
                               **variables)
            self.addCleanup(self.end, ranks[rank])
            if id_text == "make":
                id_text = ranks[rank].wait_for("id")[1]
        return ranks

    @staticmethod
    def end(rank):
        if rank.process.poll() is None:
            rank.process.kill()
        rank.process.wait()

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
        if met or rank.rank != 0:  # the meeting point goes on to tell those who come late
            self.assertEqual(sockets, 0, rank.text())
        self.assertLessEqual(threads, threads_of_library, rank.text())
        self.assertEqual(rank.process.wait(timeout=10), 0, rank.text())

    def expect_names(self, text, rank, operation=True):
        self.assertIn(f"rank {rank.rank} (pid {rank.pid} on {self.lab.names[rank.host]}", text)
        if operation:
            self.assertRegex(text, r"operation \d+ \(allreduce of \d+ x float")

    def test_killed_rank(self):
        for name, count in SIZES.items():
            for victim in (1, 0) if name == "middle" else (2,):
                with self.subTest(name, victim=victim):
                    ranks = self.start(argument=count)
                    for rank in ranks.values():
                        rank.wait_for("running")
                    since = time.monotonic()
                    ranks[victim].process.kill()
                    others = [rank for rank in ranks.values() if rank.rank != victim]
                    self.expect_names(self.expect_one_verdict(others, since, 2, REMOTE_ERROR), ranks[victim])

    def test_killed_rank_beside_others_of_its_host(self):
        for victim in (1, 3):
            with self.subTest(victim=victim):
                ranks = self.start(argument=20_000, hosts=(0, 0, 1, 1, 2))
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                ranks[victim].process.kill()
                others = [rank for rank in ranks.values() if rank.rank != victim]
                text = self.expect_one_verdict(others, since, 2, REMOTE_ERROR)
                self.assertIn(f"rank {victim} (pid {ranks[victim].pid}", text)
                self.assertIn(self.lab.names[ranks[victim].host], text)

    def test_stopped_rank(self):
        for victim, count in ((1, SIZES["middle"]), (0, SIZES["tiny"])):
            with self.subTest(victim=victim):
                ranks = self.start(argument=count)
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                os.kill(ranks[victim].pid, signal.SIGSTOP)
                others = [rank for rank in ranks.values() if rank.rank != victim]
                text = self.expect_one_verdict(others, since, TIMEOUT + 2, TIMED_OUT, ranks[victim].process.kill)
                self.expect_names(text, ranks[victim])

    def test_link_that_is_cut(self):
        for victim in (2, 0):
            with self.subTest(victim=victim):
                ranks = self.start(argument=SIZES["middle"])
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                self.lab.cut(ranks[victim].host)
                try:
                    others = [rank for rank in ranks.values() if rank.rank != victim]
                    text = self.expect_one_verdict(others, since, TIMEOUT + 3)
                    self.expect_names(text, ranks[victim])
                    when, _, text = ranks[victim].error(TIMEOUT + 10)
                    self.assertLess(when - since, TIMEOUT + 4, text)
                    self.assertTrue(any(f"rank {other.rank} (pid {other.pid}" in text for other in others), text)
                    self.expect_clean_end(ranks[victim])
                finally:
                    self.lab.heal(ranks[victim].host)

    def test_link_that_is_cut_for_a_second(self):
        ranks = self.start(argument=SIZES["middle"])
        for rank in ranks.values():
            rank.wait_for("running")
        self.lab.cut(1)
        time.sleep(1)
        self.lab.heal(1)
        time.sleep(3)
        for rank in ranks.values():
            self.assertIsNone(rank.find("error"), rank.text())
        since = time.monotonic()
        ranks[2].process.kill()
        self.expect_names(self.expect_one_verdict([ranks[0], ranks[1]], since, 2, REMOTE_ERROR), ranks[2])

    def test_rank_that_never_comes(self):
        ranks = self.start(left_out=(2,), TREERING_TIMEOUT="3")
        since = time.monotonic()
        text = self.expect_one_verdict(list(ranks.values()), since, 5, TIMED_OUT, met=False)
        self.assertIn("rank 2", text)

    def test_rank_that_is_killed_while_they_meet(self):
        for victim in (1, 2):
            with self.subTest(victim=victim):
                missing = 3 - victim
                ranks = self.start(left_out=(missing,))
                time.sleep(0.5)
                since = time.monotonic()
                ranks[victim].process.kill()
                text = self.expect_one_verdict([ranks[0]], since, 3, REMOTE_ERROR, met=False)
                self.expect_names(text, ranks[victim], operation=False)

    def test_meeting_point_that_is_killed_while_they_meet(self):
        ranks = self.start(left_out=(2,))
        time.sleep(0.5)
        since = time.monotonic()
        ranks[0].process.kill()
        text = self.expect_one_verdict([ranks[1]], since, TIMEOUT + 2)
        self.assertIn(str(ranks[0].pid), text)

    def test_rank_that_leaves_early(self):
        ranks = self.start(argument=SIZES["middle"], modes={1: "leave"})
        text = self.expect_one_verdict([ranks[0], ranks[2]], ranks[1].wait_for("leaves")[0], 2, REMOTE_ERROR)
        self.expect_names(text, ranks[1])
        self.assertIn("destroyed its communicator", text)
        self.expect_clean_end(ranks[1])

    def test_rank_that_leaves_at_once(self):
        for leaver in (1, 0):
            with self.subTest(leaver=leaver):
                ranks = self.start(argument=2, modes={leaver: "leave-at-once"})
                others = [rank for rank in ranks.values() if rank.rank != leaver]
                text = self.expect_one_verdict(others, ranks[leaver].wait_for("leaves")[0], 2, REMOTE_ERROR)
                self.assertIn(f"rank {leaver} (pid {ranks[leaver].pid}", text)
                self.assertIn("destroyed its communicator", text)

    def test_calls_that_differ(self):
        ranks = self.start(argument=1000, modes={2: "other-call"})
        text = self.expect_one_verdict(list(ranks.values()), time.monotonic(), 5, 5)
        self.assertIn("rank 2 called", text)
        self.assertIn("allreduce of 1000 x float, sum", text)
        self.assertIn("allreduce of 1001 x float, sum", text)

    def test_others_go_on_without_the_dead(self):
        for victim in (2, 0):
            with self.subTest(victim=victim):
                ranks = self.start("shrink", victim, hosts=(0, 1, 2, 1))
                for rank in ranks.values():
                    rank.wait_for("running")
                ranks[victim].process.kill()
                try:
                    for rank in ranks.values():
                        if rank.rank != victim:
                            self.expect_clean_end(rank)
                except AssertionError as failure:  # the one that is at fault is often another
                    texts = [f"rank {rank.rank}: {rank.text()}" for rank in ranks.values()]
                    raise AssertionError("\n".join([str(failure), *texts])) from None

    def test_everything_else_works_over_hosts(self):
        for hosts in ((0, 1, 2), (0, 1, 0, 1)):
            with self.subTest(hosts=hosts):
                for rank in self.start("everything", hosts=hosts).values():
                    rank.wait_for("ok", 60)
                    self.expect_clean_end(rank, threads_of_library=2)  # the agent and the streams' engine


if __name__ == "__main__":
    lab_case.main()
