# SPDX-License-Identifier: Apache-2.0
"""Calls that differ, and one cause in the same words on all survivors; judge_test.py runs it."""

import unittest

from judge import judge
from scenario import draw
from written import DIED, FAULT, SLACK, TIMEOUT, errors, record, scenario

DIFFER = "the ranks' calls differ at operation 3: rank 0 (pid 1000 on a) called barrier; rank 2 (pid 1002 on c) called reduce"
NOT_CALLED = "trCommShrink: rank 2 (pid 1002 on c) has not called it within 4000 ms"
OTHERS_HAVE_NOT = "trCommShrink: rank 0 (pid 1000 on a) has not called it within 4000 ms"


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
        # Without a shrink it is told at once.
        found = kinds_of(judge(record(scenario("differ", phase="split", differs="call"), lines), SLACK))
        self.assertTrue({"code", "overdue"} <= found, found)

    def test_each_argument_is_drawn(self):
        drawn = {(given.phase, given.differs) for index in range(3000) if (given := draw(1, index)).kind == "differ"}
        self.assertEqual({differs for phase, differs in drawn if phase == "small"}, {"count", "collective", "root", "type", "operation"})
        self.assertEqual({differs for phase, differs in drawn if phase == "split"}, {"call", "shrink"})
        self.assertTrue(all(differs for _, differs in drawn), drawn)


class RecoveryTest(unittest.TestCase):
    def test_one_that_recovers_first_is_met_by_the_others(self):
        text = "trCommShrink: the ranks' sets differ: rank 3 excludes 2, rank 0 does not"
        lines = {rank: errors(text, FAULT + TIMEOUT, 5, call="shrink", members="0,1,2,3") + [(FAULT + TIMEOUT + 0.02, "recovered", "")]
                 for rank in (0, 1, 3)}
        self.assertEqual(judge(record(scenario("stop", phase="shrink"), lines), SLACK), [])
        self.assertEqual(kinds_of(judge(record(scenario("link-cut", phase="shrink"), lines | {2: lines[0]}), SLACK)), {"code", "culprit"})
        lines[0] = [(when, word, rest.replace("excludes 2", "excludes 1")) for when, word, rest in lines[0]]
        self.assertEqual(kinds_of(judge(record(scenario("stop", phase="shrink"), lines), SLACK)), {"code", "culprit"})


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
