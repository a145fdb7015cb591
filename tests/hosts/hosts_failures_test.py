#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks on several hosts that die, stop, leave or are cut off: the others end in time, with words that say who.

usage: hosts_failures_test.py HOSTS_RANK
"""
import os
import re
import signal
import time

import lab_case
from rank_case import REMOTE_ERROR, TIMED_OUT, TIMEOUT, Rank, RankCase

# Seconds, also on a busy machine: well before the deadline, and by it. tests/faults prints how soon it is.
AT_ONCE, BY_DEADLINE = TIMEOUT - 2, TIMEOUT + 6
SIZES = {"tiny": 2, "middle": 20_000, "large": 1_000_000}


class Failures(RankCase):
    lab_options = {"hosts": 3}

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
                    self.expect_names(self.expect_one_verdict(others, since, AT_ONCE, REMOTE_ERROR), ranks[victim])

    def test_survivor_that_comes_late_hears_the_cause(self):
        """It runs again when another survivor has failed and destroyed its communicator: that one is not to blame."""
        ranks = self.start(argument=SIZES["tiny"])
        for rank in ranks.values():
            rank.wait_for("running")
        os.kill(ranks[2].process.pid, signal.SIGSTOP)
        ranks[1].process.kill()
        self.expect_names(ranks[0].error(AT_ONCE + 8)[2], ranks[1])
        ranks[0].wait_for("left", 10)
        os.kill(ranks[2].process.pid, signal.SIGCONT)
        self.expect_names(ranks[2].error(AT_ONCE + 8)[2], ranks[1])

    def test_killed_rank_beside_others_of_its_host(self):
        for victim in (1, 3):
            with self.subTest(victim=victim):
                ranks = self.start(argument=20_000, hosts=(0, 0, 1, 1, 2))
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                ranks[victim].process.kill()
                others = [rank for rank in ranks.values() if rank.rank != victim]
                text = self.expect_one_verdict(others, since, AT_ONCE, REMOTE_ERROR)
                self.assertIn(f"rank {victim} (pid {ranks[victim].pid}", text)
                self.assertIn(self.lab.names[ranks[victim].host], text)

    def test_rank_that_ends_with_the_process_that_made_the_id(self):
        """That process holds no rank, but connects them: no process is left that could tell of the rank's end."""
        for victim in (0, 2):
            with self.subTest(victim=victim):
                relay = Rank(self.lab, 0, -1, 3, "make", "relay")
                self.addCleanup(self.end, relay)
                ranks = self.start(argument=SIZES["middle"], id_text=relay.wait_for("id")[1])
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                for process in (relay.process, ranks[victim].process):
                    os.kill(process.pid, signal.SIGSTOP)
                for process in (ranks[victim].process, relay.process):
                    process.kill()
                others = [rank for rank in ranks.values() if rank.rank != victim]
                self.expect_names(self.expect_one_verdict(others, since, 4, REMOTE_ERROR), ranks[victim])

    def test_stopped_rank(self):
        for victim, count in ((1, SIZES["middle"]), (0, SIZES["tiny"])):
            with self.subTest(victim=victim):
                ranks = self.start(argument=count)
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                os.kill(ranks[victim].pid, signal.SIGSTOP)
                others = [rank for rank in ranks.values() if rank.rank != victim]
                text = self.expect_one_verdict(others, since, BY_DEADLINE, TIMED_OUT, ranks[victim].process.kill)
                self.expect_names(text, ranks[victim])
                silent = re.search(r"does not answer \((\d+\.\d) s by now\)", text)
                self.assertTrue(silent and TIMEOUT - 1 < float(silent[1]) < BY_DEADLINE, text)
                told = "".join(rank.text() for rank in others)
                self.assertRegex(told, rf"W: rank {victim} .*: its process has not answered for [2-6]\.\d s")

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
                    text = self.expect_one_verdict(others, since, BY_DEADLINE)
                    self.expect_names(text, ranks[victim])
                    when, _, text = ranks[victim].error(TIMEOUT + 10)
                    self.assertLess(when - since, TIMEOUT + 8, text)
                    self.assertTrue(any(f"rank {other.rank} (pid {other.pid}" in text for other in others), text)
                    self.expect_clean_end(ranks[victim])
                finally:
                    self.lab.heal(ranks[victim].host)

    def test_split_over_a_link_that_is_cut(self):
        """The deadline holds for the whole call, also where no word reaches the top of the tree."""
        timeout = 8
        for victim in (2, 0):
            with self.subTest(victim=victim):
                ranks = self.start("splits", TREERING_TIMEOUT=str(timeout))
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                self.lab.cut(ranks[victim].host)
                try:
                    for rank in ranks.values():
                        when, _, text = rank.error(timeout + 15)
                        self.assertLess(when - since, timeout + 6, f"rank {rank.rank}: {text}")
                finally:
                    self.lab.heal(ranks[victim].host)

    def test_rank_that_ends_in_a_split(self):
        for name in ("SIGKILL", "_exit"):
            for victim in (2, 0):
                with self.subTest(name, victim=victim):
                    ranks = self.start("splits", modes={victim: "splits-until-told"})
                    for rank in ranks.values():
                        rank.wait_for("running")
                    since = time.monotonic()
                    if name == "SIGKILL":
                        ranks[victim].process.kill()
                    else:
                        ranks[victim].tell()
                    for rank in (rank for rank in ranks.values() if rank.rank != victim):
                        when, code, text = rank.error(AT_ONCE + 15)
                        self.assertLess(when - since, AT_ONCE, f"rank {rank.rank}: {text}")
                        self.assertEqual(code, REMOTE_ERROR, text)
                        self.expect_names(text, ranks[victim], operation=False)
                        self.expect_clean_end(rank)

    def test_another_communicator_beside_one_that_fails(self):
        """One thread moves both: nothing that the failure needs may hold the other one up."""
        ranks = self.start("beside", hosts=(0, 0, 1), TREERING_TIMEOUT="4")
        for rank in ranks.values():
            rank.wait_for("running")
        self.lab.cut(1)
        try:
            for rank in (ranks[0], ranks[1]):
                most = float(rank.wait_for("latency", 30)[1].split()[3])
                self.assertLess(most, 5000, rank.text())  # milliseconds: a wait for the verdict would be 13 s
        finally:
            self.lab.heal(1)
            self.end(ranks[2])

    def test_what_is_lost_is_sent_again_by_a_rank_that_waits_on_another_communicator(self):
        """Its receiver waits for it, and comes to the other communicator only then."""
        for creates in (0, 1):
            with self.subTest(creates=creates):
                ranks = self.start("lose", creates, hosts=(0, 1))
                for rank in ranks.values():
                    rank.wait_for("running")
                self.lab.cut(1)
                try:
                    ranks[0].tell()
                    ranks[0].wait_for("reset")
                finally:
                    self.lab.heal(1)
                self.assertIsNone(ranks[1].find("received"), "the network was not cut: nothing was lost")
                ranks[0].tell()
                for rank in ranks.values():
                    rank.wait_for("ok")

    def test_link_of_two_ranks_that_is_cut(self):
        """Who looks for a new place in the tree finds that the next process is silent, too."""
        for mode in ("cut", "stop"):
            with self.subTest(mode):
                ranks = self.start(argument=SIZES["middle"], hosts=(0, 0, 1, 2))
                for rank in ranks.values():
                    rank.wait_for("running")
                since = time.monotonic()
                if mode == "cut":
                    self.lab.cut(0)
                else:
                    for victim in (0, 1):
                        os.kill(ranks[victim].pid, signal.SIGSTOP)
                try:
                    text = self.expect_one_verdict([ranks[2], ranks[3]], since, BY_DEADLINE)
                    for victim in (0, 1):
                        self.expect_names(text, ranks[victim])
                        ranks[victim].process.kill()
                finally:
                    self.lab.heal(0)

    def test_link_that_is_cut_until_the_tree_has_parted(self):
        """Both parts are one tree again afterwards: a verdict reaches all."""
        ranks = self.start(argument=SIZES["middle"], hosts=(0, 0, 1, 2), TREERING_TIMEOUT="40")
        for rank in ranks.values():
            rank.wait_for("running")
        before = ranks[2].count_connections_to(ranks[3])
        self.lab.cut(0)
        try:
            self.wait_until(lambda: ranks[2].count_connections_to(ranks[3]) > before)  # one is the other's parent now
        finally:
            self.lab.heal(0)
        self.wait_until_all_go_on(ranks.values())
        self.wait_until_all_go_on(ranks.values(), time.monotonic() + 3)  # two tops look for one another every 0.5 s
        since = time.monotonic()
        ranks[3].process.kill()
        self.expect_names(self.expect_one_verdict([ranks[0], ranks[1], ranks[2]], since, AT_ONCE, REMOTE_ERROR), ranks[3])

    def test_link_that_is_cut_for_a_second(self):
        ranks = self.start(argument=SIZES["middle"])
        for rank in ranks.values():
            rank.wait_for("running")
        self.lab.cut(1)
        time.sleep(1)
        self.lab.heal(1)
        self.wait_until_all_go_on(ranks.values())
        since = time.monotonic()
        ranks[2].process.kill()
        self.expect_names(self.expect_one_verdict([ranks[0], ranks[1]], since, AT_ONCE, REMOTE_ERROR), ranks[2])

    def test_link_that_is_cut_for_less_than_half_of_the_deadline(self):
        """Streams of all kinds are opened again; hosts_rank checks the results of each call."""
        for name, count in SIZES.items():
            with self.subTest(name):
                ranks = self.start(argument=count)
                for rank in ranks.values():
                    rank.wait_for("running")
                self.lab.cut(1)
                time.sleep(3)
                self.lab.heal(1)
                self.wait_until_all_go_on(ranks.values())
                for rank in ranks.values():
                    self.end(rank)

    def test_link_that_is_cut_while_they_look_for_one_another(self):
        self.lab.cut(1)
        try:
            ranks = self.start(TREERING_TIMEOUT="80")
            ranks[1].wait_for_text("has not been reached for", 50)
        finally:
            self.lab.heal(1)
        self.wait_until_all_go_on(ranks.values())

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
                self.wait_until_taken_in(ranks[victim])
                since = time.monotonic()
                ranks[victim].process.kill()
                text = self.expect_one_verdict([ranks[0]], since, 3, REMOTE_ERROR, met=False)
                self.expect_names(text, ranks[victim], operation=False)

    def test_rendezvous_root_that_is_killed_while_they_meet(self):
        ranks = self.start(left_out=(2,))
        self.wait_until_taken_in(ranks[1])
        since = time.monotonic()
        ranks[0].process.kill()
        text = self.expect_one_verdict([ranks[1]], since, BY_DEADLINE)
        self.assertIn(str(ranks[0].pid), text)

    def test_rank_that_leaves_early(self):
        ranks = self.start(argument=SIZES["middle"], modes={1: "leave"})
        text = self.expect_one_verdict([ranks[0], ranks[2]], ranks[1].wait_for("leaves")[0], AT_ONCE, REMOTE_ERROR)
        self.expect_names(text, ranks[1])
        self.assertIn("destroyed its communicator", text)
        ranks[1].process.stdin.close()
        self.expect_clean_end(ranks[1])

    def test_rank_that_leaves_at_once(self):
        for leaver in (1, 0):
            with self.subTest(leaver=leaver):
                ranks = self.start(argument=2, modes={leaver: "leave-at-once"})
                others = [rank for rank in ranks.values() if rank.rank != leaver]
                text = self.expect_one_verdict(others, ranks[leaver].wait_for("leaves")[0], AT_ONCE, REMOTE_ERROR)
                self.assertIn(f"rank {leaver} (pid {ranks[leaver].pid}", text)
                self.assertIn("destroyed its communicator", text)

    def test_calls_that_differ(self):
        ranks = self.start(argument=1000, modes={2: "other-call"})
        text = self.expect_one_verdict(list(ranks.values()), time.monotonic(), 5, 5)
        self.assertRegex(text, rf"rank 2 \(pid {ranks[2].pid} on {self.lab.names[ranks[2].host]}\) called")
        self.assertIn("allreduce of 1000 x float, sum", text)
        self.assertIn("allreduce of 1001 x float, sum", text)

    def test_calls_of_other_roots(self):
        """No message of theirs differs, and some wait in the broadcast while others are in the barrier already."""
        for hosts in ((0, 1, 2), (0, 1, 1, 2, 0)):
            with self.subTest(hosts=hosts):
                ranks = self.start("roots", 2, hosts=hosts)
                text = self.expect_one_verdict(list(ranks.values()), time.monotonic(), 5, 5)
                self.assertIn("differ at operation 3", text)
                self.assertRegex(text, r"rank 2 \(pid \d+[^)]*\) called broadcast of 1 x int32, root 1")
                self.assertIn("called broadcast of 1 x int32, root 0", text)

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

    def test_stopped_rank_that_runs_again_when_the_others_have_gone_on(self):
        """It was the top of the control tree, and heard nothing of their verdict, and that they left or ended."""
        for mode in ("shrink", "shrink-and-stay"):
            with self.subTest(mode):
                ranks = self.start(mode, 0, modes={0: "shrink-alone"})
                for rank in ranks.values():
                    rank.wait_for("running")
                os.kill(ranks[0].pid, signal.SIGSTOP)
                for rank in (ranks[1], ranks[2]):
                    rank.wait_for("left" if mode == "shrink" else "stays", BY_DEADLINE + 10)
                    if mode == "shrink":
                        self.expect_clean_end(rank)
                os.kill(ranks[0].pid, signal.SIGCONT)
                ranks[0].wait_for("left", BY_DEADLINE + 10)
                self.expect_clean_end(ranks[0])
                if mode == "shrink":
                    continue
                for rank in (ranks[1], ranks[2]):
                    rank.tell()
                for rank in (ranks[1], ranks[2]):
                    self.expect_clean_end(rank)

    def test_halves_that_exclude_each_other_while_a_link_is_cut(self):
        """The ranks of a host hear from the others only after the outage: two communicators must not come of it."""
        ranks = self.start("halves", hosts=(0, 0, 1, 1), TREERING_TIMEOUT="30")
        for rank in ranks.values():
            rank.wait_for("running")
        self.lab.cut(1)
        try:
            for rank in ranks.values():
                rank.tell()
            for rank in ranks.values():
                rank.wait_for("shrinking")
            begun = time.monotonic()
            self.wait_until(lambda: time.monotonic() > begun + 0.8 or any(rank.find("made") for rank in ranks.values()))
        finally:
            self.lab.heal(1)
        self.wait_until(lambda: all(rank.find("made") or rank.find("error") for rank in ranks.values()))
        halves = [{rank.find("made") is not None for rank in ranks.values() if rank.host == host} for host in (0, 1)]
        self.assertNotEqual(halves, [{True}, {True}], "two communicators")
        for rank in ranks.values():
            if rank.find("error"):
                self.assertIn("the ranks' sets differ", rank.text())

    def test_everything_else_works_over_hosts(self):
        for hosts in ((0, 1, 2), (0, 1, 0, 1)):
            with self.subTest(hosts=hosts):
                for rank in self.start("everything", hosts=hosts).values():
                    rank.wait_for("ok", 60)
                    self.expect_clean_end(rank, threads_of_library=2)  # the agent and the streams' engine


class TwoNetworks(RankCase):
    lab_options = {"hosts": 2, "nics": 2}

    def test_network_that_is_cut_for_good(self):
        """What was on its way through it is sent again through the other one; hosts_rank checks the results of each call."""
        for nic, name in ((0, "large"), (1, "middle")):
            with self.subTest(name, nic=nic):
                ranks = self.start(argument=SIZES[name], hosts=(0, 0, 1))
                for rank in ranks.values():
                    rank.wait_for("running")
                self.lab.cut(1, nic)
                try:
                    deadline = time.monotonic() + TIMEOUT + 1  # of what was under way
                    for rank in ranks.values():
                        rank.wait_until_it_goes_on(deadline)
                finally:
                    self.lab.heal(1, nic)
                for rank in ranks.values():
                    self.end(rank)


    def cut_and_send_last(self, name, *nics):
        ranks = self.start("send-last", SIZES[name], hosts=(0, 1), TREERING_TIMEOUT="20")
        for rank in ranks.values():
            rank.wait_for("running")
        for nic in nics:
            self.lab.cut(1, nic)
        try:
            ranks[0].tell()
            self.assertLess(float(ranks[0].wait_for("destroyed")[1]), 3.5 + 2)
            if len(nics) == 2:
                self.assertIsNone(ranks[1].find("received"), "the networks were not cut: nothing was under way")
            else:
                ranks[1].wait_for("received")
        finally:
            for nic in nics:
                self.lab.heal(1, nic)
        ranks[1].wait_for("received")
        for rank in ranks.values():
            rank.wait_for("destroyed")
            rank.tell()
            self.expect_clean_end(rank)

    def test_what_a_rank_sends_last_takes_the_other_network(self):
        for name in ("tiny", "middle", "large"):  # on the shared stream, on one of others, on all of these
            for nic in (0, 1):
                with self.subTest(name, nic=nic):
                    self.cut_and_send_last(name, nic)

    def test_what_a_rank_sends_last_arrives_after_an_outage(self):
        self.cut_and_send_last("tiny", 0, 1)


class SlowNetwork(RankCase):
    """While a communicator is created, one rank of each host measures the network, which takes long here."""
    lab_options = {"hosts": 4, "mbit": 1}

    def test_rank_that_fails_while_the_network_is_measured(self):
        for how, code in ((signal.SIGKILL, REMOTE_ERROR), (signal.SIGSTOP, TIMED_OUT)):
            for victim in (0, 2):
                with self.subTest(how.name, victim=victim):
                    # News wait in queues behind what is measured, for seconds.
                    ranks = self.start(hosts=(0, 1, 2, 3), TREERING_DEBUG="INFO", TREERING_TIMEOUT="12")
                    for rank in ranks.values():
                        rank.wait_for_text("rendezvous of process")
                    self.wait_until(lambda: sum(sent for rank in ranks.values() for sent, *_ in rank.connections().values()) > 4000)
                    since = time.monotonic()
                    os.kill(ranks[victim].pid, how)
                    others = [rank for rank in ranks.values() if rank.rank != victim]
                    text = self.expect_one_verdict(others, since, 20, code)
                    self.expect_names(text, ranks[victim], operation=False)
                    for other in others:
                        self.assertNotRegex(text, rf"rank {other.rank} \(pid {other.pid} on \S+\)[^;.]*(answer|lost|ended)")
                    ranks[victim].process.kill()


    def test_rank_that_dies_while_others_wait_for_the_measurement(self):
        """The ranks that do not measure are in an exchange already."""
        ranks = self.start(hosts=(0, 1, 2, 3, 0, 1), TREERING_DEBUG="INFO", TREERING_TIMEOUT="12")
        for rank in ranks.values():
            rank.wait_for_text("rendezvous of process")
        # What else is sent is small.
        self.wait_until(lambda: any(sent > 30_000 for rank in ranks.values() for sent, *_ in rank.connections().values()))
        os.kill(ranks[1].pid, signal.SIGKILL)
        for rank in (ranks[number] for number in (0, 2, 3, 4, 5)):
            _, code, text = rank.error(20)
            self.assertEqual(code, REMOTE_ERROR, text)
            self.expect_names(text, ranks[1], operation=False)
            self.assertNotIn("does not answer", text)


class LargePackets(RankCase):
    lab_options = {"hosts": 4}

    def test_link_that_drops_large_packets(self):
        """As where MTUs differ. The control tree's small messages pass, so all ranks answer: the two ends are named."""
        try:
            self.lab.drop_large_packets_of(2, 1000)
        except lab_case.Unavailable as reason:
            self.skipTest(f"no packets can be dropped here (nft): {reason}")
        ranks = self.start(hosts=(0, 1, 2, 3), TREERING_TIMEOUT="4")
        texts = {rank.error(20)[2] for rank in ranks.values()}
        self.assertEqual(len(texts), 1, texts)
        text = texts.pop()
        self.expect_names(text, ranks[2], operation=False)
        self.expect_names(text, ranks[3], operation=False)
        self.assertIn("the creation of the communicator", text)
        self.assertIn("are alive and wait for each other", text)


if __name__ == "__main__":
    lab_case.main()
