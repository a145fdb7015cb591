# SPDX-License-Identifier: Apache-2.0
"""Calls that differ, and one cause in the same words on all survivors; judge_test.py runs it."""

import unittest

from judge import judge
from scenario import draw
from written import DIED, FAULT, SLACK, TIMEOUT, errors, record, scenario

DIFFER = "the ranks' calls differ at operation 3: rank 0 (pid 1000 on a) called barrier; rank 2 (pid 1002 on c) called reduce"
NOT_CALLED = "trCommShrink: rank 2 (pid 1002 on c) has not called it within 4 s"
OTHERS_HAVE_NOT = "trCommShrink: rank 0 (pid 1000 on a) has not called it within 4 s"


def kinds_of(found):
    return {finding.kind for finding in found}


class CallsThatDifferTest(unittest.TestCase):
    def test_both_are_named_with_pid_and_host(self):
        given = scenario("differ")
        self.assertEqual(judge(record(given, errors(DIFFER)), SLACK), [])
        for short in (DIFFER.replace(" (pid 1002 on c)", ""), DIFFER.replace(" on c", "")):
            self.assertEqual(kinds_of(judge(record(given, errors(short)), SLACK)), {"culprit"}, short)

    def test_one_beside_a_shrink_ends_at_the_deadline(self):
        given = scenario("differ", phase="shrink", differs="call")
        late = FAULT + TIMEOUT
        lines = {rank: errors(NOT_CALLED, late, 8, call="shrink", members="0,1,2,3") for rank in (0, 1, 3)} | {2: errors(OTHERS_HAVE_NOT, late, 8)}
        self.assertEqual(judge(record(given, lines), SLACK), [])
        self.assertIn("culprit", kinds_of(judge(record(given, lines | {1: errors(OTHERS_HAVE_NOT, late, 8, call="shrink", members="0,1,2,3")}), SLACK)))
        # A rank that is not the victim names the victim.
        waits = NOT_CALLED.replace("rank 2 (pid 1002 on c)", "rank 0 (pid 1000 on a)") + ". Rank 3 waited for rank 0, which waited for rank 2"
        found = judge(record(given, lines | {3: errors(waits, late, 8, call="shrink", members="0,1,2,3")}), SLACK)
        self.assertEqual({(finding.kind, finding.rank) for finding in found}, {("culprit", 3)})
        # It has no other code, and not before the deadline.
        found = judge(record(given, lines | {1: errors(NOT_CALLED, late, 5, call="shrink", members="0,1,2,3")}), SLACK)
        self.assertEqual({(finding.kind, finding.rank) for finding in found}, {("code", 1)})
        # Without a shrink it is told at once.
        found = kinds_of(judge(record(scenario("differ", phase="split", differs="call"), lines), SLACK))
        self.assertTrue({"code", "overdue"} <= found, found)

    def test_each_argument_is_drawn(self):
        drawn = {(given.phase, given.differs) for index in range(3000) if (given := draw(1, index)).kind == "differ"}
        self.assertEqual({differs for phase, differs in drawn if phase == "small"}, {"count", "collective", "root", "type", "operation"})
        self.assertEqual({differs for phase, differs in drawn if phase == "split"}, {"call", "shrink"})
        self.assertTrue(all(differs for _, differs in drawn), drawn)


class GoingTest(unittest.TestCase):
    def test_an_abort_that_does_not_return_is_a_hang(self):
        for kind in ("abort", "leave"):
            lines = {rank: errors("rank 2 (pid 1002 on c) destroyed its communicator before operation 7") for rank in (0, 1, 3)}
            self.assertEqual(judge(record(scenario(kind), lines | {2: [(FAULT, "gone", "0")]}), SLACK), [])
            self.assertEqual(kinds_of(judge(record(scenario(kind), lines | {2: [(FAULT, "did", kind)]}), SLACK)), {"hang"})


class RecoveryTest(unittest.TestCase):
    def lines(self, excluded, when=FAULT + TIMEOUT, first=NOT_CALLED):
        text = f"trCommShrink: the ranks' sets differ: rank 3 excludes {excluded}, rank 0 does not"
        def shrink(text, code, when):
            return errors(text, when, code, call="shrink", members="0,1,2,3") + [(when + 0.2, "recovered", "")]
        return {0: shrink(text, 5, when + 0.1), 1: shrink(text, 5, when + 0.1), 3: shrink(first, 8, when)}

    def test_a_survivor_meets_one_that_recovers_already(self):
        given = scenario("stop", phase="shrink")
        self.assertEqual(judge(record(given, self.lines("2")), SLACK), [])
        two = scenario("stop", phase="shrink", victims=[1, 2])
        lines = self.lines("1, 2", first=NOT_CALLED)
        del lines[1]
        self.assertEqual(judge(record(two, lines), SLACK), [])
        # It excludes one that was not hit, or has not failed before.
        self.assertEqual(kinds_of(judge(record(given, self.lines("1")), SLACK)), {"code", "culprit"})
        early = self.lines("2")
        early[3] = self.lines("2", FAULT + TIMEOUT + 0.3)[3]
        self.assertEqual(kinds_of(judge(record(given, early), SLACK)), {"code", "culprit"})


class OneCauseTest(unittest.TestCase):
    def test_survivors_say_the_same(self):
        other = DIED.replace("operation 7 (barrier)", "operation 8 (barrier)")
        lines = {0: errors(DIED), 1: errors(other), 3: errors(DIED)}
        self.assertEqual([finding.text for finding in judge(record(scenario(), lines), SLACK)],
                         [f"the survivors say different things: {DIED} / {other}"])
        # In a creation each says in which.
        self.assertEqual(judge(record(scenario(phase="split"), lines), SLACK), [])


if __name__ == "__main__":
    unittest.main()
