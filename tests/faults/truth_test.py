# SPDX-License-Identifier: Apache-2.0
"""What is said of a rank that is not so, and faults that met nothing; judge_test.py runs it."""

import unittest

from judge import judge
from written import FAULT, HOSTS, SILENT, SLACK, TIMEOUT, errors, fine, record, scenario

DESTROYED = "rank 1 (pid 1001 on b) destroyed its communicator in or before operation 7 (barrier)"
BEHIND = "rank 1 (pid 1001 on b) was lost in or before operation 7: cut off behind process 2 (pid 1002 on c), which has ended"


def untrue(given, lines):
    return [finding.text for finding in judge(record(given, lines), SLACK) if finding.kind == "untrue"]


class TruthTest(unittest.TestCase):
    def test_a_rank_that_is_said_to_have_destroyed_its_communicator(self):
        given = scenario("outage")
        late = errors(SILENT, FAULT + TIMEOUT)
        self.assertEqual(len(untrue(given, {0: errors(DESTROYED), 1: late, 2: late, 3: late})), 1)
        # It had: it was through with it before.
        before = {0: errors(DESTROYED, FAULT + TIMEOUT + 0.1), 1: late, 2: late, 3: late}
        self.assertEqual(untrue(given, before), [])
        for kind in ("leave", "abort"):
            self.assertEqual(untrue(scenario(kind, victims=[1]), {rank: errors(DESTROYED) for rank in (0, 2, 3)}), [])

    def test_a_process_above_that_is_said_to_have_ended(self):
        lines = {rank: errors(BEHIND, FAULT + TIMEOUT) for rank in (0, 1, 3)}
        self.assertEqual(len(untrue(scenario("reject", victims=[2], victim_hosts=[2]), lines | {2: errors(SILENT)})), 3)
        self.assertEqual(untrue(scenario("kill"), lines), [])
        lost = {rank: errors(BEHIND.replace("has ended", "was lost"), FAULT + TIMEOUT) for rank in (0, 1, 3)}
        self.assertEqual(untrue(scenario("reject", victims=[2], victim_hosts=[2]), lost | {2: errors(SILENT)}), [])

    def test_a_rank_that_failed_is_missing_and_no_more_than_that(self):
        given = scenario("kill", phase="split")
        names = "rank 2 (pid 1002 on c) has died in or before trCommSplit"
        first = errors(names, call="split", members="0,1,2,3")
        for more, is_good in (("; missing: rank 1 (pid 1001 on b) of 4 ranks", True), (". Rank 1 (pid 1001 on b) destroyed its communicator", False),
                              (". Rank 1 (pid 1001 on b) was lost in or before trCommSplit", False)):
            second = errors(names + more, FAULT + 0.3, call="split", members="0,1,2,3")
            found = [finding for finding in judge(record(given, {0: second, 1: first, 3: first}), SLACK) if finding.kind == "culprit"]
            self.assertEqual(found == [], is_good, more)


class CreationsThatAreCutOffTest(unittest.TestCase):
    def test_a_rank_in_one_is_named_beside_the_other_side(self):
        given = scenario("link-cut", victims=[1, 2], victim_hosts=[1, 2], phase="split")
        text = "no progress within 4 s in operation 9 (barrier): rank 2 (pid 1002 on c) has not entered it (its last is operation 8)"
        through = ". Answers of others come through process 9 (pid 17 on a): its process does not answer (4.2 s by now)"
        late, split = FAULT + TIMEOUT, SILENT.replace("rank 2 (pid 1002 on c)", "rank 0 (pid 1000 on a)")
        others = {0: errors(SILENT, late), 3: errors(SILENT, late), 2: errors(split, late, call="split", members="0,2")}
        for words, is_good in ((text + through, True), (text, False)):
            found = judge(record(given, others | {1: errors(words, late - 0.1)}), SLACK)
            self.assertEqual(found == [], is_good, found)

    def test_one_that_can_be_heard_only_through_the_other_side_may_live(self):
        given = scenario("drop-in", victims=[0], victim_hosts=[0])
        for host, pid, is_good in (("a", 1000, True), ("c", 1002, False)):
            text = (f"no progress within 4 s in operation 7 (barrier): rank 0 (pid 1000 on a): its process does not answer (4.4 s by now); rank 3 "
                    f"(pid 1003 on d): cut off behind process 2 (pid {pid} on {host}), which does not answer; whether it lives is not known")
            lines = {rank: errors(text, FAULT + TIMEOUT) for rank in (1, 2)} | {0: errors(SILENT, FAULT + TIMEOUT), 3: fine()}
            found = [finding for finding in judge(record(given, lines), SLACK) if finding.kind == "culprit" and finding.rank == 1]
            self.assertEqual(found == [], is_good, found)

    def test_a_network_that_is_back_has_no_other_side(self):
        text = "no progress within 4 s in operation 9 (barrier): rank 2 (pid 1002 on c) has not entered it (its last is operation 8)"
        late, split = FAULT + TIMEOUT, SILENT.replace("rank 2 (pid 1002 on c)", "rank 0 (pid 1000 on a)")
        given = scenario("long-outage", victims=[1, 2], victim_hosts=[1, 2], phase="split")
        for back_at, began, is_good in ((late - 0.2, FAULT, True), (0, FAULT, False), (late, FAULT, False), (late - 0.2, late, False)):
            lines = {0: errors(SILENT, late), 3: errors(SILENT, late), 1: errors(text, late - 0.1),
                     2: errors(split, late + 0.1, began=began, call="split", members="0,2")}
            run = record(given, lines)
            run.passes_again_at = back_at
            found = [finding for finding in judge(run, SLACK) if finding.kind == "culprit" and finding.rank == 1]
            self.assertEqual(found == [], is_good, found)


class FaultsThatMetNothingTest(unittest.TestCase):
    def test_a_limit_that_was_not_set(self):
        for kind in ("no-memory", "no-descriptors"):
            given = scenario(kind)
            limit = f"rank 2 (pid 1002 on {HOSTS[2]}) ran out of memory in operation 7" if kind == "no-memory" else \
                f"rank 2 (pid 1002 on {HOSTS[2]}): no file descriptor is left for a connection"
            lines = {rank: errors(limit) for rank in range(4)}
            self.assertEqual(judge(record(given, lines), SLACK), [])
            unset = record(given, lines)
            for process in unset.processes:
                process.lines[:] = [line for line in process.lines if line.word != "did"]
            self.assertEqual({finding.kind for finding in judge(unset, SLACK)}, {"driver"})
