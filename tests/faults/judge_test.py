#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The judge of the fault injection finds each class of defect in hand-written outputs, and none in good ones."""

import dataclasses
import unittest

from bounds_test import DeadlineOfACallThatMovedTest, DestroyTest  # noqa: F401
from causes_test import CallsThatDifferTest, GoingTest, OneCauseTest, RecoveryTest  # noqa: F401
from codes_test import CodesOfACutNetworkTest, CodesOfALimitTest, CodesOfClosedSocketsTest  # noqa: F401
from group import Line, Process
from judge import assertion_of_ucx, judge, seconds_to_last_error
from run_one import Record
from scenario import SURVIVE
from scenario_test import ScenarioTest  # noqa: F401
from table import Table
from tolerance_test import ToleranceTest  # noqa: F401
from truth_test import CreationsThatAreCutOffTest, FaultsThatMetNothingTest, TruthTest  # noqa: F401
from written import DIED, FAULT, HOSTS, LEFT, SILENT, SLACK, TIMEOUT, errors, fine, record, scenario


class JudgeTest(unittest.TestCase):
    def expect(self, kind, words, one):
        found = judge(one, SLACK)
        self.assertTrue(found, f"nothing was found; expected {kind}: {words}")
        self.assertIn(kind, {finding.kind for finding in found}, found)
        self.assertIn(words, " / ".join(finding.text for finding in found))

    def expect_culprit(self, words, text, given=None, **how):
        self.expect("culprit", words, record(given or scenario(), errors(text, **how)))

    def expect_untrue(self, words, text, given=None):
        self.expect("untrue", words, record(given or scenario(), errors(text)))

    def test_good_runs(self):
        stop = "no progress within 4 s in operation 7 (barrier): rank 2 (pid 1002 on c, stopped by a signal or a debugger) " \
               "has shown no sign of life for 4.0 s. Rank 0 waited for rank 1"
        left = "rank 2 (pid 1002 on c) destroyed its communicator in or before operation 7 (barrier)"
        lost = "rank 2 (pid 1002 on c) was lost in or before operation 7: its process has ended without leaving"
        for given, text in ((scenario(), DIED), (scenario("exit"), lost), (scenario("stop"), stop), (scenario("leave"), left),
                            (scenario("revoke"), "rank 2 (pid 1002 on c) revoked the communicator")):
            with self.subTest(given.kind):
                self.assertEqual(judge(record(given, errors(text)), SLACK), [])
        both = "ranks 1, 2 (pid 1002 on c): its process has ended without leaving (the other side closed the connection)"
        self.assertEqual(judge(record(scenario(victims=[1, 2]), errors(both.replace("1, 2", "2"))), SLACK), [])
        cut = {rank: errors(SILENT if rank != 2 else SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)"), FAULT + 4)
               for rank in range(4)}
        self.assertEqual(judge(record(scenario("link-cut"), cut), SLACK), [])
        self.assertEqual(judge(record(scenario("tiny-buffers"), fine(), FAULT + 0.8), SLACK), [])
        self.assertAlmostEqual(seconds_to_last_error(record(scenario(), errors(DIED))), 0.1)

    def test_hang(self):
        self.expect("hang", "no result", record(scenario(), {0: errors(DIED), 1: errors(DIED), 3: [(FAULT, "heartbeat", "4")]}))
        self.expect("hang", "did not end", record(scenario(), errors(DIED), statuses={1: None}))

    def test_late(self):
        self.expect("late", "barrier failed 4.60 s", record(scenario(), errors(DIED, FAULT + 4.6)))
        self.assertEqual(judge(record(scenario(), errors(DIED, FAULT + 4.6, began=FAULT + 1)), SLACK), [])
        self.expect("late", "agreed to stop", record(scenario("tiny-buffers"), fine(FAULT + 9.5), FAULT + 0.8))
        slow = [(when, word, "0 2.700" if word == "destroyed" else rest) for when, word, rest in errors(DIED)]
        self.expect("late", "trCommDestroy", record(scenario(), slow))
        stopped = scenario("stop-short", victims=[1], seconds=3)
        slow = [(FAULT + 3, "ok", ""), (FAULT + 3, "destroyed", "0 3.000"), (FAULT + 3.1, "end", "")]
        lines = {rank: slow if rank == 1 else fine(FAULT + 3) for rank in range(4)}
        self.assertEqual(judge(record(stopped, lines, FAULT + 3), SLACK), [])

    def test_a_call_that_loses_packets_may_move_before_it_stands_still(self):
        text = "no progress within 4 s in a send or receive: rank 1 (pid 1001 on b) and rank 2 (pid 1002 on c) are alive and " \
               "wait for each other: what they sent has not arrived. Rank 0 waited for rank 3"
        began = FAULT + 0.1
        for call, members, most in (("send", "-", 2), ("init", "0,1,2,3", 2), ("split", "0,1,2,3", 1)):
            for after, late in ((most * TIMEOUT + 0.4, False), (most * TIMEOUT + 0.8, True)):
                lines = errors(text, began + after, 8, began, call, members)
                found = judge(record(scenario("loss", loss=20), lines), SLACK)
                self.assertEqual([finding.kind for finding in found], ["late"] * 4 if late else [], (call, after, found))

    def test_a_death_is_told_at_once(self):
        near = {"transport": "shared-memory", "processes": [(0, [rank]) for rank in range(4)], "timeout": 10}
        died = DIED.replace("on c", "on a")

        def after(seconds, text, **given):
            one = record(scenario(**given), errors(text, FAULT + seconds))
            one.processes[2].host = one.scenario.host_of(2)
            return one

        self.assertEqual(judge(after(1.4, died, **near), SLACK), [])
        self.expect("late", "failed 1.60 s", after(1.6, died, **near))
        self.assertEqual(judge(after(4.4, DIED, timeout=10), SLACK), [])
        self.expect("late", "failed 4.60 s", after(4.6, DIED, timeout=10))
        missing = "the deadline passed while the communicator was being created, says rank 0 (pid 1000 on a); missing: rank 2 of 4 ranks"
        init = record(scenario(phase="init", timeout=10), errors(missing, FAULT + 10.2, code=8, call="init"))
        self.assertEqual(judge(init, SLACK), [])
        self.expect("late", "failed 4.60 s", record(scenario(phase="init", timeout=10), errors(DIED, FAULT + 4.6, call="init")))

    def test_wrong(self):
        self.expect("wrong", "is 5", record(scenario(), [(FAULT, "wrong", "reduce element 3 is 5 and not 6"), *errors(DIED)]))
        gone = {2: [(FAULT - 1, "wrong", "reduce element 3 is 5 and not 6")], **{rank: errors(DIED) for rank in (0, 1, 3)}}
        self.expect("wrong", "is 5", record(scenario(), gone))

    def test_untold(self):
        self.expect("untold", "no error", record(scenario(), {0: errors(DIED), 1: errors(DIED), 3: fine()}))
        # A creation that failed lets all agree to stop: a rank that agreed afterwards was told.
        cut = {rank: errors(SILENT, FAULT + 4, call="split", members="0,1,2,3") for rank in (0, 1)}
        cut[2] = errors(SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)"), FAULT + 4)
        self.assertEqual(judge(record(scenario("link-cut"), cut | {3: fine(FAULT + 4.5)}), SLACK), [])
        self.expect("untold", "no error", record(scenario("link-cut"), cut | {3: fine(FAULT + 3.5)}))
        dead = {rank: errors(DIED, call="split", members="0,1,2,3") for rank in (0, 1)}
        self.expect("untold", "no error", record(scenario(), dead | {3: fine()}))
        text = errors(DIED)
        text[1] = (text[1][0], "again", "0 ")
        self.expect("untold", "succeeded", record(scenario(), text))

    def test_wrong_rank_pid_or_host(self):
        self.expect_culprit("does not name rank 2", DIED.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)"))
        self.expect_culprit("it blames rank 1", DIED + "; rank 1 (pid 1001 on b) has not entered it (its last is operation 6)")
        self.expect_untrue("is no rank of the run", DIED.replace("1002", "1003"))
        self.expect_untrue("is on c", DIED.replace("on c", "on b"))
        self.expect_culprit("and host", DIED.replace(" on c", ""))
        self.expect_culprit("with pid", DIED.replace(" (pid 1002 on c)", ""))
        self.expect_culprit("does not name", "the link failed")
        self.expect("words", "other words", record(scenario(), errors(DIED, again="another text")))
        self.expect_culprit("it blames rank 1 (pid 1001 on b", DIED + "; rank 1 (pid 1001 on b, in an uninterruptible wait of "
                            "the kernel) has shown no sign of life for 4.0 s")

    def test_numbers_of_another_group(self):
        # Rank 1 of the subset is rank 2 of all.
        text = "the deadline passed while the communicator was being created; missing: rank 1 (pid 1002 on c) of 2 ranks"
        self.assertEqual(judge(record(scenario(), errors(text, code=6, call="split", members="0,2", again=DIED)), SLACK)[1:], [])
        self.expect_culprit("it blames rank 0", text.replace("rank 1 (pid 1002 on c)", "rank 0"), call="split", members="0,2")
        self.expect_culprit("does not name", text.replace("rank 1 (pid 1002 on c)", "rank 1"), call="barrier")

    def test_ranks_of_one_process_have_one_pid(self):
        # Rank 0 of the subset is rank 1 of all, in the process of rank 0.
        given = scenario("leave", processes=[(0, [0, 1]), (1, [2, 3])], victims=[0])
        text = "rank 0 (pid 1000 on a) destroyed its communicator before operation 16 (trCommSplit or trCommDup) was complete"
        said = errors(text, call="split", members="1,3")
        processes = [Process(1000 + host, host, ranks, [Line(when, rank, word, rest) for rank in ranks if rank != 0
                                                        for when, word, rest in said], status=0)
                     for host, ranks in given.processes]
        found = judge(Record(given, HOSTS, processes, FAULT, 0.0, FAULT + 12), SLACK)
        self.assertEqual([finding for finding in found if finding.kind == "culprit"], [])

    def test_messenger(self):
        left = "rank 1 (pid 1001 on b) destroyed its communicator in or before operation 7 (barrier)"
        self.expect_culprit("does not name rank 2", left)
        self.expect_culprit("it blames rank 1", left)
        self.expect_culprit("has not destroyed", DIED.replace("has died", "destroyed its communicator"))
        self.expect_culprit("does not say that the rank left", DIED, scenario("leave"))

    def test_living_and_dead(self):
        self.expect_untrue("is called alive and is dead", SILENT.replace(": its process does not answer (4.0 s by now)", " is alive"))
        self.expect_untrue("is called dead and lives", DIED, scenario("stop"))
        ended = SILENT.replace("does not answer (4.0 s by now)", "has ended without leaving (Connection reset by peer)")
        self.expect_untrue("is called dead and lives", ended, scenario("link-cut"))

    def test_a_rank_that_others_cannot_connect_to_lives(self):
        """Also where the fault is to be survived."""
        lost = "rank {} was lost in or before operation 7 (barrier): nothing listens at its addresses any more: it has ended, {}; " \
               "its last completed operation is 6"
        closed, refused = "or has closed its sockets", "has closed its sockets, or something refuses connections in its place"
        hit, other = "2 (pid 1002 on c)", "1 (pid 1001 on b)"
        reject = scenario("reject", victims=[2], victim_hosts=[2])
        self.assertEqual(reject.outcome, SURVIVE)
        for given, who, how, is_true in ((reject, hit, closed, False), (reject, hit, refused, True), (reject, other, refused, False),
                                         (scenario("outage"), hit, refused, False), (scenario("close-sockets"), hit, closed, True),
                                         (scenario("close-sockets"), hit, refused, True), (scenario(), hit, closed, True),
                                         (scenario(), hit, refused, True), (scenario("stop"), hit, closed, False)):
            with self.subTest(given.kind, who=who, how=how):
                found = judge(record(given, errors(lost.format(who, how))), SLACK)
                self.assertEqual("untrue" not in {finding.kind for finding in found}, is_true, found)
        given = scenario("link-cut")
        left = [(FAULT, "destroyed", "0 0.001")]
        lines = {rank: errors(lost.format(other, closed)) for rank in (0, 2, 3)}
        self.assertNotIn("untrue", {finding.kind for finding in judge(record(given, lines | {1: left}), SLACK)})

    def test_sides_of_a_network_fault(self):
        inner = SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)")
        self.expect("culprit", "a rank that was cut off", record(scenario("link-cut"), errors(inner, FAULT + 4)))
        self.expect("culprit", "a rank on the other side", record(scenario("link-cut"), errors(SILENT, FAULT + 4)))
        for short in (SILENT.replace(" (pid 1002 on c)", ""), SILENT.replace(" on c", "")):
            self.expect("culprit", "a rank that was cut off with pid and host", record(scenario("link-cut"), errors(short, FAULT + 4)))
        maker = "the deadline passed: the process that made the unique id (pid 1002) does not answer"
        outside = {rank: errors(maker if rank != 2 else maker.replace("1002", "1000"), FAULT + 4) for rank in range(4)}
        self.assertEqual(judge(record(scenario("link-cut"), outside), SLACK), [])
        self.expect("culprit", "a rank that was cut off",
                    record(scenario("link-cut"), errors(maker.replace("1002", "1000"), FAULT + 4)))

    def test_own_side_is_not_blamed(self):
        text = SILENT + "; rank 1 (pid 1001 on b): its process does not answer (4.0 s by now)"
        outside = {rank: errors(text, FAULT + 4) for rank in (0, 1, 3)}
        outside[2] = errors(SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)"), FAULT + 4)
        self.expect("culprit", "it blames rank 1 (pid 1001 on b), which is on its own side", record(scenario("link-cut"), outside))
        theirs = errors(SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)") + ". Rank 2 waited for rank 1", FAULT + 4)
        self.assertEqual(judge(record(scenario("link-cut"), {rank: theirs for rank in range(4)}), SLACK), [])
        says = errors("the deadline passed, says rank 2 (pid 1002 on c); missing: rank 1 (pid 1001 on b) of 4 ranks", FAULT + 4)
        self.assertEqual(judge(record(scenario("link-cut"), {rank: says for rank in range(4)}), SLACK), [])
        waits = "the deadline passed, says rank 3 (pid 1003 on d); missing: rank 1 (pid 1001 on b) of 2 ranks. " \
                "Meanwhile rank 1 (pid 1001 on b) waits for rank 2 (pid 1002 on c)"
        self.assertEqual(judge(record(scenario("link-cut"), outside | {rank: errors(waits, FAULT + 4) for rank in (0, 1, 3)}), SLACK), [])
        outside[1] = errors(SILENT, FAULT + 3.9)  # it had failed and was gone
        self.assertEqual(judge(record(scenario("link-cut"), outside), SLACK), [])

    def test_others_are_not_blamed_for_what_a_rank_did(self):
        differ = "the ranks' calls differ at operation 3: rank 2 called reduce; rank 1 (pid 1001 on b) has not entered it"
        self.expect_culprit("it blames rank 1", differ, scenario("differ"), code=5)
        limit = "rank 2 (pid 1002 on c): no file descriptor is left for a connection; rank 1 (pid 1001 on b) has died"
        self.expect_culprit("it blames rank 1", limit, scenario("no-descriptors"))
        missing = "says rank 0 (pid 1000 on a); missing: rank 2 (pid 1002 on c) of 4 ranks. Meanwhile rank 2 (pid 1002 on c) waits for rank 0 " \
                  "(pid 1000 on a)"
        self.assertEqual(judge(record(scenario("no-descriptors", phase="init"), errors(missing, call="init")), SLACK), [])

    def test_a_rank_at_its_limit_says_so_and_blames_no_other(self):
        given = scenario("no-descriptors")
        limit = "rank 2 (pid 1002 on c): no file descriptor is left for a connection (its limit is 64; see ulimit -n)"
        others = {rank: errors(limit) for rank in (0, 1, 3)}
        for text, words in ((limit, None), ("memfd_create: Too many open files", None), (limit.replace("descriptor", "thing"), None),
                            ("the call failed", "says nothing of its own limit"),
                            ("Too many open files: rank 1 (pid 1001 on b) has died", "it blames rank 1"),
                            ("rank 1 (pid 1001 on b) was lost in or before operation 7", "does not name rank 2")):
            with self.subTest(text):
                one = record(given, others | {2: errors(text, code=2)})
                self.expect("culprit", words, one) if words else self.assertEqual(judge(one, SLACK), [])
        self.assertEqual(judge(record(scenario("no-memory"), others | {2: errors("out of memory")}), SLACK), [])
        for short in (limit.replace(" (pid 1002 on c)", ""), limit.replace(" on c", "")):
            self.expect("culprit", "does not name rank 2 with pid and host", record(given, others | {1: errors(short)}))

    def test_ranks_that_wait_in_a_creation_that_the_victim_gave_up_have_not_entered_its_next_call(self):
        given = scenario("no-descriptors", phase="shrink")
        everyone, own = "0,1,2,3", "no file descriptor is left for a connection"
        waits = "no progress within 4 s in operation 7 (barrier): rank 1 (pid 1001 on b) has not entered it. Rank 2 waited for rank 1"
        missing = "the deadline passed while the communicator was being created; missing: rank 2 (pid 1002 on c) of 4 ranks"
        in_creation = errors(missing, FAULT + 4.1, 8, FAULT, "shrink", everyone)[:1] + errors(waits, FAULT + 4.1, 8)
        lines = {rank: in_creation for rank in (0, 1, 3)}
        lines[2] = errors(own, FAULT + 0.1, 2, FAULT, "shrink", everyone)[:1] + errors(waits, FAULT + 4, 8)
        self.assertEqual(judge(record(given, lines), SLACK), [])
        lines[1] = errors(waits, FAULT + 4.1, 8)
        self.expect("culprit", "it blames rank 1", record(given, lines))

    def test_a_rank_that_is_added_misses_those_whose_call_failed(self):
        given = scenario(phase="grow", timeout=10)
        text = "the deadline passed while the communicator was being created, says rank 3 (pid 1003 on d); missing: rank {} of 4 ranks"
        lines = {rank: errors(DIED, FAULT + 0.1, call="shrink", members="0,1,2") for rank in (0, 1)}
        lines[3] = errors(text.format("0, rank 1"), FAULT + 10, code=8, call="init", members="0,1,2,3")
        self.assertEqual(judge(record(given, lines), SLACK), [])
        self.expect("culprit", "it does not name rank 2", record(given, {3: lines[3], 0: fine(), 1: fine()}))
        lines[3] = errors("the connection ended", FAULT + 0.2, call="init", members="0,1,2,3")
        self.expect("culprit", "it does not name rank 2", record(given, lines))

    def test_a_rank_that_is_added_is_told_at_once_if_the_others_called(self):
        given = scenario(phase="grow", timeout=10)
        lines = {rank: errors(DIED, FAULT + 0.1, call="shrink", members="0,1,2") for rank in (0, 1)}
        lines[3] = errors("the process that made the unique id (pid 1000) ended", FAULT + 8, call="init", members="0,1,2,3")
        self.assertEqual(judge(record(given, lines), SLACK), [])
        lines[0] = errors(DIED, FAULT + 0.1, call="grow", members="0,1,2,3")
        self.expect("overdue", "failed 8.00 s", record(given, lines))

    def test_a_rank_that_was_to_be_added_and_is_gone_is_missing(self):
        given = scenario(phase="grow", timeout=10, victims=[3])
        text = "the deadline passed while the communicator was being created, says rank 0 (pid 1000 on a); missing: rank 3 of 4 ranks"
        lines = {rank: errors(text, FAULT + 10, code=8, call="grow", members="0,1,2,3", again=DIED) for rank in range(3)}
        self.assertEqual(judge(record(given, lines), SLACK), [])
        self.expect("overdue", "after it began", record(dataclasses.replace(given, victims=[2]), lines))

    def test_one_whose_other_call_failed_has_not_entered_the_next_indeed(self):
        text = "no progress within 4 s in operation 7 (barrier): rank 1 (pid 1001 on b) has not entered it (its last is operation 6)"
        inner = SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)")
        lines = {0: errors(text, FAULT + 4.2, 8), 1: errors(SILENT, FAULT + 4, 8, call="allreduce", members="0,1,2,3"),
                 2: errors(inner, FAULT + 4, 8), 3: errors(SILENT, FAULT + 4, 8)}
        self.assertEqual(judge(record(scenario("link-cut"), lines), SLACK), [])
        lines[1] = errors(SILENT, FAULT + 4.4, 8)
        self.expect("culprit", "a rank that was cut off", record(scenario("link-cut"), lines))

    def test_a_relay_on_the_other_side_is_named(self):
        text = ("no progress within 4 s in operation 7 (barrier): no answer of rank 3 (pid 1003 on d) has come for 4.0 s. Answers come "
                "through process 0 (pid 999 on {}): its process does not answer (4.4 s by now). Rank 2 waited for rank 3")
        given = scenario("partition", victims=[2, 3], victim_hosts=[2, 3])
        lines = {rank: errors(text.format("a"), FAULT + 4, 8) for rank in (2, 3)}
        lines.update({rank: errors(SILENT, FAULT + 4, 8) for rank in (0, 1)})
        self.assertEqual(judge(record(given, lines), SLACK), [])
        lines[3] = errors(text.format("c"), FAULT + 4, 8)
        self.expect("culprit", "a rank on the other side", record(given, lines))

    def test_a_relay_on_the_other_side_that_passes_nothing_on_is_named(self):
        text = "trCommShrink: no answer of rank 1 (pid 1001 on b) has come: process 0 (pid 999 on {}), through which rank 3 (pid 1003 on d) " \
               "hears of the others, has not passed it on"
        lines = {rank: errors(SILENT, FAULT + 4, 8) for rank in (0, 1)}
        lines[2] = errors(SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)"), FAULT + 4)
        for host, is_good in (("c", True), ("a", False)):
            given = scenario("link-cut", victim_hosts=[2], phase="shrink")
            lines[3] = errors(text.format(host), FAULT + 4, 8, call="shrink", members="0,1,2,3")
            self.assertEqual(judge(record(given, lines), SLACK) == [], is_good, host)

    def test_maker_of_the_id_without_descriptors(self):
        text = "the process that made the unique id (pid 1002 on c): no file descriptor is left for a connection"
        given = scenario("no-descriptors", phase="init")
        self.assertEqual(judge(record(given, errors(text, call="init")), SLACK), [])
        self.expect("culprit", "does not name rank 2", record(given, errors(text.replace("1002", "1001"), call="init")))

    def test_differing_calls(self):
        self.expect_culprit("does not name rank 2", "the ranks' calls differ: rank 0 called barrier; rank 1 called reduce",
                            scenario("differ"), code=5)

    def test_unexpected(self):
        for kind in ("tiny-buffers", "outage", "stop-short", "shm-full"):
            given = scenario(kind, victims=[2] if kind != "tiny-buffers" else [])
            with self.subTest(kind):
                self.assertEqual(given.outcome, SURVIVE)
                self.expect("unexpected", "barrier after", record(given, errors(SILENT), FAULT + 0.8))
        self.expect("unexpected", "could not go on", record(scenario(phase="shrink"), errors(DIED)))

    def test_an_error_before_the_fault_is_spurious(self):
        self.expect("spurious", "before the fault", record(scenario(), errors(DIED, FAULT - 1)))
        started = record(scenario("tiny-buffers"), errors(SILENT, FAULT - 5))
        started.trouble = "the ranks did not get into the phase"
        self.expect("spurious", "before the fault", started)

    def test_a_communicator_that_cannot_be_destroyed_is_no_matter_of_time(self):
        failed = [(when, word, "6 0.001" if word == "destroyed" else rest) for when, word, rest in errors(DIED)]
        self.assertEqual({finding.kind for finding in judge(record(scenario(), failed), SLACK)}, {"code"})
        self.expect("code", "trCommDestroy returned 6", record(scenario(), failed))
        for kind, call in (("abort", "trCommAbort"), ("leave", "trCommDestroy")):
            gone = {2: [(FAULT, "gone", "3")]} | {rank: errors(DIED) for rank in (0, 1, 3)}
            self.expect("code", f"{call} returned 3", record(scenario(kind), gone))

    def test_codes_of_the_documentation(self):
        left, aborted = "rank 2 (pid 1002 on c) destroyed its communicator before operation 7", "rank 2 (pid 1002 on c) aborted the communicator"
        missing = "the deadline passed while the communicator was being created; missing: rank 2 (pid 1002 on c) of 4 ranks"
        inner, both = SILENT.replace("rank 2 (pid 1002 on c)", "rank 1 (pid 1001 on b)"), "the ranks' calls differ: rank 2 called barrier"
        limit = "rank 2 (pid 1002 on c) ran out of memory in operation 7"
        root = "trCommShrink: rank 2 (pid 1002 on c), the first of the new communicator, could not make the rendezvous root"
        lost = "rank 2 (pid 1002 on c) was lost in or before operation 7: its process has ended without leaving"
        for kind, phase, call, text, good, bad in (
                ("kill", "small", "barrier", DIED, 6, 8), ("_exit", "small", "barrier", DIED, 6, 2), ("leave", "small", "barrier", left, 6, 8),
                ("abort", "small", "barrier", aborted, 6, 8), ("revoke", "small", "barrier", aborted, 6, 8),
                ("kill-id", "small", "barrier", DIED, 6, 5), ("stop", "small", "barrier", SILENT, 8, 6),
                ("differ", "small", "barrier", both, 5, 6), ("link-cut", "small", "barrier", inner, 8, 6),
                ("partition", "small", "barrier", inner, 8, 2), ("no-memory", "small", "barrier", limit, 2, 6),
                ("no-memory", "small", "barrier", lost, 6, 5),
                # A rank that is missing: it ended, or was at its limit, before it had reached the others.
                ("kill", "init", "init", missing, 8, 2), ("kill", "split", "split", missing, 6, 8), ("kill", "small", "barrier", missing, 6, 8),
                ("leave", "grow", "init", missing, 8, 2), ("no-descriptors", "shrink", "shrink", missing, 8, 3),
                ("no-descriptors", "shrink", "shrink", root, 6, 3),
                ("no-descriptors", "grow", "shrink", f"the process that made the unique id cannot be reached. The id is from {limit[:22]}", 8, 3),
                ("close-sockets", "init", "init", f"no connection to {limit[:22]}: 10.77.0.2 port 35657: Connection refused", 2, 5),
                ("close-sockets", "small", "barrier", lost, 6, 2), ("close-sockets", "small", "barrier", SILENT, 8, 2)):
            given = scenario(kind, phase=phase, victims=[2])
            for code, is_good in ((good, True), (bad, False)):
                with self.subTest(kind, phase=phase, code=code, text=text):
                    found = judge(record(given, errors(text, FAULT + 0.1, code, call=call)), SLACK)
                    self.assertEqual("code" not in {finding.kind for finding in found}, is_good, found)

    def test_codes_of_faults_that_are_to_be_survived(self):
        left = "rank 2 (pid 1002 on c) destroyed its communicator in or before operation 7 (barrier)"
        for kind, text, code, is_good in (("outage", SILENT, 8, True), ("outage", SILENT, 3, False), ("outage", left, 6, True),
                                          ("outage", SILENT, 6, False), ("stop-short", SILENT, 6, False), ("reject", SILENT, 6, True),
                                          ("kill-relay", SILENT, 3, True)):
            with self.subTest(kind, text=text, code=code):
                found = judge(record(scenario(kind), errors(text, code=code)), SLACK)
                self.assertIn("unexpected", {finding.kind for finding in found})
                self.assertEqual("code" not in {finding.kind for finding in found}, is_good, found)

    def test_the_next_call_returns_the_same_code(self):
        lines = [(when, word, f"8 {DIED}" if word == "again" else rest) for when, word, rest in errors(DIED)]
        self.expect("code", "returns 8 after 6", record(scenario(), lines))

    def test_what_a_rank_does_is_told_at_once(self):
        left = "rank 2 (pid 1002 on c) destroyed its communicator in or before operation 7 (barrier)"
        revoked = "rank 2 (pid 1002 on c) revoked the communicator"
        differ = "the ranks' calls differ at operation 3: rank 0 (pid 1000 on a) called barrier; rank 2 (pid 1002 on c) called reduce"
        for kind, text in (("leave", left), ("revoke", revoked), ("differ", differ)):
            with self.subTest(kind):
                self.assertEqual(judge(record(scenario(kind), errors(text, FAULT + 1.4)), SLACK), [])
                self.expect("late", "failed 1.60 s", record(scenario(kind), errors(text, FAULT + 1.6)))
        # The victim was in a long call before.
        late = {rank: errors(left, FAULT + 2.4) for rank in (0, 1, 3)}
        self.assertEqual(judge(record(scenario("leave"), late | {2: [(FAULT + 1, "did", "leave"), (FAULT + 1, "gone", "0")]}), SLACK), [])

    def test_a_rank_that_is_missing_in_a_grow_is_so_until_the_deadline(self):
        missing = "the deadline passed while the communicator was being created, says rank 0 (pid 1000 on a); missing: rank 2 of 4 ranks"
        for phase, call, is_good in (("grow", "grow", True), ("grow", "init", True), ("shrink", "shrink", False)):
            # All have called: none waits for another's call.
            lines = {rank: errors(missing, FAULT + 4.1, 8, call=call) for rank in range(4)}
            lines[0] = errors(missing, FAULT + 4.1, 8, call="grow" if phase == "grow" else call)
            late = {finding.kind for finding in judge(record(scenario("revoke", phase=phase), lines), SLACK)} & {"late", "overdue"}
            self.assertEqual(not late, is_good, (phase, call))

    def test_ranks_do_not_go_on_after_the_fault(self):
        died = {rank: errors(DIED, FAULT + 3.6, began=FAULT + 3.5) for rank in (0, 1, 3)}
        self.expect("overdue", "began 3.50 s after the fault", record(scenario(), died))
        died = {rank: errors(DIED, FAULT + 1.5, began=FAULT + 1.4) for rank in (0, 1, 3)}
        self.assertEqual(judge(record(scenario(), died), SLACK), [])

    def test_what_is_late_by_more_than_the_slack_again_is_overdue(self):
        for after, kind in ((4.4, None), (4.6, "late"), (4.9, "late"), (5.1, "overdue"), (9, "overdue")):
            found = judge(record(scenario("stop"), errors(SILENT, FAULT + after)), SLACK)
            self.assertEqual({finding.kind for finding in found}, {kind} if kind else set(), (after, found))
        for seconds, kind in (("2.400", None), ("2.700", "late"), ("3.100", "overdue")):
            lines = [(when, word, f"0 {seconds}" if word == "destroyed" else rest) for when, word, rest in errors(DIED)]
            found = judge(record(scenario(), lines), SLACK)
            self.assertEqual({finding.kind for finding in found}, {kind} if kind else set(), (seconds, found))

    def test_driver(self):
        one = record(scenario(), {})
        one.trouble = "the ranks did not get into the phase"
        self.expect("driver", "did not get", one)

    def test_left_over(self):
        for name, count in (("sockets", 1), ("memfds", 1), ("descriptors", 9), ("threads", 2), ("mapped", 1)):
            with self.subTest(name):
                parts = [f"{name}={count}" if part.startswith(name) else part for part in LEFT.split()]
                lines = [(when, word, " ".join(parts) if word == "left" else rest) for when, word, rest in errors(DIED)]
                self.expect("left over", f"{name}={count}", record(scenario(), lines))
        one = record(scenario(), errors(DIED))
        one.left_in_memory = ["treering-1"]
        self.expect("left over", "treering-1", one)

    def test_crash(self):
        self.expect("crash", "SIGSEGV", record(scenario(), errors(DIED), statuses={1: -11}))
        self.expect("crash", "status 1", record(scenario(), errors(DIED), statuses={1: 1}))

    def test_a_report_of_a_sanitizer_is_a_crash_and_shown_from_its_begin(self):
        stack = [f"    #{frame} 0x55abe2f03a10 in name{frame} ../src/file.cpp:{frame}" for frame in range(30)]
        for begin in ("../src/failure/watch.cpp:284:54: runtime error: member call on address 0x61 which does not point to an object",
                      "==9575==ERROR: AddressSanitizer: heap-use-after-free on address 0x61", "WARNING: ThreadSanitizer: data race (pid=9575)"):
            # The process may go on, and a rank that is killed may have said it before.
            for rank, statuses in ((1, {1: 1}), (1, {}), (2, {})):
                with self.subTest(begin=begin, rank=rank, statuses=statuses):
                    one = record(scenario(), errors(DIED), statuses=statuses)
                    one.processes[rank].log += ["something else", begin, *stack]
                    self.expect("crash", f"it said: {begin} / #0 0x55abe2f03a10 in name0", one)
                    self.assertEqual(len(judge(one, SLACK)), 1)
                    self.assertIn("name10 ", judge(one, SLACK)[0].text)
                    self.assertNotIn("name11 ", judge(one, SLACK)[0].text)

    def test_one_that_is_heard_through_the_victim_alone_is_missing_indeed(self):
        text = ("the deadline passed while the communicator was being created, says rank 0 (pid 1000 on a); missing: rank 3 of 4 ranks; "
                "process 3 (pid 1003 on d) has come, and is heard through rank {} alone")
        one = scenario("stop", phase="init")
        good = text.format("2 (pid 1002 on c)")
        self.assertEqual(judge(record(one, errors(good, FAULT + 4, code=8, call="init")), SLACK), [])
        self.expect_culprit("it blames rank 3", text.format("1 (pid 1001 on b)"), one, when=FAULT + 4, code=8, call="init")

    def test_over_networks_of_others(self):
        """A death is told within 3 s, a creation may take half of the deadline more, and what a status may mean blames no rank."""
        over = {"transport": "ucx-4x1"}
        self.expect("late", "failed 3.60 s", record(scenario(**over), errors(DIED, FAULT + 3.6)))
        self.assertEqual(judge(record(scenario(phase="init", **over), errors(DIED, FAULT + 5.9, call="init")), SLACK), [])
        self.expect("late", "failed 6.60 s", record(scenario(phase="init", **over), errors(DIED, FAULT + 6.6, call="init")))
        text = "the connection of rank 2 (pid 1002 on c) to rank 1 (pid 1001 on b) failed: {}sending: transport retry counter exceeded: " \
               "the peer's card does not acknowledge: its process has ended, the link is down, or the GIDs cannot reach each other"
        kept = LEFT.replace("sockets=0", "sockets=6")
        def of_creation(text, when):
            return [(at, word, kept if word == "left" else rest)
                    for at, word, rest in errors(text, when, call="dup", members="0,1,2,3")]

        self.assertEqual(judge(record(scenario("stop", phase="destroy", **over), of_creation(SILENT, FAULT + 4)), SLACK), [])
        self.expect("left over", "sockets=6", record(scenario(phase="destroy", **over), of_creation(DIED, FAULT + 1)))
        said = [(when, word, kept if word == "left" else rest) for when, word, rest in errors(DIED)]
        self.expect("left over", "sockets=6", record(scenario(**over), said))
        port = scenario("port-down", transport="verbs-3x1", victims=[2])
        link = text.format("verbs with rank 1 (pid 1001), by rxe2 port 1 (GID 1: 10.89.0.3) to rxe1 port 1 (GID 10.89.0.2): ")
        self.assertEqual(judge(record(port, errors(link)), SLACK), [])
        self.expect_culprit("does not say", text.format("verbs with rank 1 (pid 1001): "), port)

    def test_assertions_of_ucx_are_told_from_crashes_of_ours(self):
        line = "[h0:7:0:7] ucp_request.c:684  Assertion `(req->send.wireup.type == UCP_WIREUP_MSG_ACK)' failed: got REP message"
        for transport, text, is_theirs in (("ucx-4x1", line, True), ("tcp-4x1", line, False),
                                           ("ucx-4x1", line.replace("ucp_request.c", "ucp_ep.c"), False),
                                           ("ucx-4x1", line.replace("got REP message", "no resources"), False)):
            one = record(scenario(transport=transport), errors(DIED), statuses={1: -6})
            one.processes[1].log.append(text)
            self.assertEqual(assertion_of_ucx(one), text if is_theirs else None)

    def test_a_fault_that_hits_nothing_shows_nothing(self):
        for kind, deed in (("reset-sockets", "reset"), ("shutdown-sockets", "shutdown")):
            one = scenario(kind)
            said = [(FAULT, "did", f"{deed} 0")]
            self.expect("driver", "hit no connection", record(one, {**{rank: fine() for rank in range(4)}, 2: said + fine()}))
            said = [(FAULT, "did", f"{deed} 3")]
            self.assertEqual(judge(record(one, {**{rank: fine() for rank in range(4)}, 2: said + fine()}), SLACK), [])


class TableTest(unittest.TestCase):
    def test_table(self):
        table = Table()
        table.add(scenario(), judge(record(scenario(), errors(DIED, FAULT + 4.9)), SLACK), 9.0)
        table.add(scenario(), [], 0.5)
        self.assertIn("| kill | tcp-4x1 | 2 | 1 |  | 1 |  |", table.markdown())
        self.assertRegex(table.text(), r"kill +tcp-4x1 +2 +1 +1 .*4\.75 +9\.00")


if __name__ == "__main__":
    unittest.main()
