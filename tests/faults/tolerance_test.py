# SPDX-License-Identifier: Apache-2.0
"""Which failures the suite tolerates; judge_test.py runs it."""

import unittest

from judge import Finding, judge
from tolerance import are_tolerated, most_ended_by_ucx
from written import DIED, FAULT, SILENT, SLACK, errors, record, scenario


class ToleranceTest(unittest.TestCase):
    def failed(self, kind="stop", phase="small", finding="late", text="it came late"):
        return scenario(kind, phase=phase), [Finding(finding, 0, text)]

    def test_what_load_may_cause(self):
        for kind, phase, finding, is_tolerated in (
                ("stop", "small", "late", True), ("stop", "small", "culprit", False), ("kill", "small", "culprit", False),
                ("stop", "small", "words", True), ("kill", "small", "words", False), ("abort", "small", "culprit", False), ("link-cut", "small", "culprit", True),
                ("outage", "small", "unexpected", True), ("reset", "small", "unexpected", False), ("reset", "init", "unexpected", True),
                ("link-cut", "init", "untold", True), ("link-cut", "small", "untold", False), ("stop", "small", "hang", False),
                ("stop", "small", "overdue", False), ("reject", "small", "untrue", False), ("stop", "small", "code", False),
                ("kill", "small", "code", False), ("link-cut", "small", "code", True),
                ("outage", "small", "spurious", False), ("outage", "init", "spurious", False)):
            with self.subTest(kind, phase=phase, finding=finding):
                self.assertEqual(are_tolerated([self.failed(kind, phase, finding)], 200, 1), is_tolerated)

    def test_how_often_ucx_may_end_a_process(self):
        self.assertEqual([most_ended_by_ucx(runs) for runs in (1, 19, 20, 59, 60, 150, 200, 600)], [0, 0, 1, 1, 3, 3, 4, 12])

    def test_what_is_judged_is_tolerated_only_for_timing(self):
        """A failure without a fault, a code and a living rank that is called dead are none of it."""
        lost = "rank 2 (pid 1002 on c) was lost in or before operation 7: nothing listens at its addresses any more: it has ended, or has " \
               "closed its sockets"
        destroyed = [(when, word, "6 0.001" if word == "destroyed" else rest) for when, word, rest in errors(DIED)]
        reject = scenario("reject", victims=[2], victim_hosts=[2])
        for given, lines in ((scenario("outage"), errors(SILENT, FAULT - 1)), (scenario(), destroyed), (reject, errors(lost)),
                             (scenario("stop"), errors(SILENT, FAULT + 4, 6)), (scenario("stop"), errors(SILENT, FAULT + 5.1))):
            with self.subTest(given.kind):
                found = judge(record(given, lines), SLACK)
                self.assertTrue(found)
                self.assertFalse(are_tolerated([(given, found)], 200, 1), found)
        given = scenario("stop")
        self.assertTrue(are_tolerated([(given, judge(record(given, errors(SILENT, FAULT + 4.9)), SLACK))], 200, 1))

    def test_how_many(self):
        kinds = ("stop", "outage", "link-cut")
        for count, runs, percent, is_tolerated in ((1, 200, 1, True), (2, 200, 1, True), (3, 200, 1, False), (3, 200, 3, False), (1, 60, 1, True), (2, 60, 1, False),
                                                   (0, 60, 0, True), (1, 200, 0, False)):
            with self.subTest(count=count, runs=runs, percent=percent):
                self.assertEqual(are_tolerated([self.failed(kind) for kind in kinds[:count]], runs, percent), is_tolerated)
        self.assertFalse(are_tolerated([self.failed(), self.failed()], 2000, 1))
