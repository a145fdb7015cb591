# SPDX-License-Identifier: Apache-2.0
"""Draws of scenarios; judge_test.py runs it."""

import unittest

from scenario import ERROR, KINDS, OF_GUESTS, PHASES, SURVIVE, TRANSPORTS, draw


class ScenarioTest(unittest.TestCase):
    def test_draws_repeat_and_are_possible(self):
        outcomes, phases = set(), set()
        for index in range(3000):
            one = draw(5, index)
            self.assertEqual(one, draw(5, index))
            transport, kind = TRANSPORTS[one.transport], KINDS[one.kind]
            self.assertTrue(len(one.victims) < one.ranks or one.gone == [], one.describe())
            self.assertLessEqual(one.ranks, 8)
            self.assertIn("destroy" if one.phase == "grow" else one.phase, kind.phases)
            phases.add(one.phase)
            self.assertFalse(one.victim_hosts and not transport.has_network, one.describe())
            self.assertTrue(one.gone == [] or transport.processes or kind.victims == "rank", one.describe())
            outcomes.add((one.kind, one.outcome))
        self.assertEqual({kind for kind, _ in outcomes}, {kind for kind in KINDS if KINDS[kind].transports})
        self.assertIn(("kill", ERROR), outcomes)
        self.assertLessEqual({*PHASES, "grow"}, phases)

    def test_draws_over_networks_of_others(self):
        for over in ("ucx", "verbs"):
            drawn = [draw(6, index, over=over) for index in range(1000)]
            self.assertEqual(drawn[7], draw(6, 7, over=over))
            self.assertEqual({one.over for one in drawn}, {over})
            self.assertIn("alltoall", {one.phase for one in drawn})
        self.assertEqual({one.kind for one in drawn}, set(OF_GUESTS))
        self.assertEqual({one.outcome for one in drawn if one.kind == "port-outage" and one.phase == "large"}, {SURVIVE})
