# SPDX-License-Identifier: Apache-2.0
"""The judge measures deadlines of calls that moved from when they may have moved last, and how long a destroy takes."""

import unittest

from judge import judge
from written import DIED, FAULT, SILENT, SLACK, TIMEOUT, errors, record, scenario


class DeadlineOfACallThatMovedTest(unittest.TestCase):
    def kinds(self, lines):
        return [finding.kind for finding in judge(record(scenario("link-cut"), lines), SLACK)]

    def outside(self, late, own, when):
        other_side = errors(SILENT.replace("rank 2 (pid 1002 on c)", "rank 0 (pid 1000 on a)"), when, code=8)
        return {0: late, 1: own, 2: other_side, 3: late}

    def test_by_one_that_came_when_its_split_had_failed(self):
        """Rank 1 is waited for again."""
        late = errors(SILENT, FAULT + 2 * TIMEOUT, code=8)
        split = [(FAULT + TIMEOUT, "error", f"8 {FAULT:.6f} split 0,1,2,3 trCommSplit: {SILENT}")]
        own = errors(SILENT, FAULT + 2 * TIMEOUT, code=8, began=FAULT + TIMEOUT)
        self.assertNotIn("late", self.kinds(self.outside(late, split + own, FAULT + TIMEOUT)))
        self.assertIn("overdue", self.kinds(self.outside(late, late, FAULT + TIMEOUT)))

    def test_by_one_that_came_within_the_deadline(self):
        for came, late in ((0.3, False), (0.0, True), (TIMEOUT + 0.1, True)):
            with self.subTest(came):
                waited = errors(SILENT, FAULT + TIMEOUT + 0.7, code=8, began=FAULT)
                own = errors(SILENT, FAULT + TIMEOUT + 0.7, code=8, began=FAULT + came)
                self.assertEqual("late" in self.kinds(self.outside(waited, own, FAULT + TIMEOUT)), late)

    def test_not_by_one_on_the_other_side(self):
        waited, came = (errors(SILENT, FAULT + TIMEOUT + 0.7, code=8, began=FAULT + late) for late in (0, 0.3))
        other_side = errors(SILENT.replace("rank 2 (pid 1002 on c)", "rank 0 (pid 1000 on a)"), FAULT + TIMEOUT + 0.3, code=8,
                            began=FAULT + 0.3)
        self.assertNotIn("late", self.kinds({0: waited, 1: came, 2: other_side, 3: waited}))
        self.assertIn("late", self.kinds({0: waited, 1: waited, 2: other_side, 3: waited}))

    def test_not_of_a_death_that_is_told_at_once(self):
        died, came = (errors(DIED, FAULT + TIMEOUT + 0.7, began=began) for began in (FAULT, FAULT + 0.3))
        found = judge(record(scenario(), {0: died, 1: came, 3: died}), SLACK)
        self.assertIn("late", [finding.kind for finding in found])


class DestroyTest(unittest.TestCase):
    def kinds(self, seconds, kind, timeout):
        lines = [(when, word, f"0 {seconds}" if word == "destroyed" else rest) for when, word, rest in errors(SILENT, FAULT + timeout, code=8)]
        found = judge(record(scenario(kind, timeout=timeout), lines), SLACK)
        return {finding.kind for finding in found if "trCommDestroy" in finding.text}

    def test_waits_for_another_connection_where_the_network_is_cut(self):
        for kind, timeout, seconds, expected in (("link-cut", 20, 3.9, set()), ("link-cut", 20, 4.1, {"late"}), ("link-cut", 20, 4.6, {"overdue"}),
                                                 ("link-cut", 4, 2.4, set()), ("link-cut", 4, 2.6, {"late"}), ("stop", 20, 2.6, {"late"})):
            with self.subTest(kind, timeout=timeout, seconds=seconds):
                self.assertEqual(self.kinds(seconds, kind, timeout), expected)
