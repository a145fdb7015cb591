# SPDX-License-Identifier: Apache-2.0
"""Which codes follow from a limit of a process, and from closed sockets; judge_test.py runs it."""

import unittest

from judge import judge
from written import FAULT, SLACK, TIMEOUT, errors, fine, record, scenario

FULL = "trCommShrink: getifaddrs: Too many open files"
MISSING = "trCommShrink: the deadline passed while the communicator was being created; missing: rank 2 (pid 1002 on c) of 4 ranks"
UNHEARD = "trCommShrink: the deadline passed while the ranks met: rank 2 (pid 1002 on c), through which rank 1 (pid 1001 on b) hears of the " \
          "others, does not answer"
WAITS = "no progress within 4 s in operation 12 (allreduce): rank 0 (pid 1000 on a) is alive, and waits for no rank. Rank 2 waited for rank 0"
LATE = FAULT + TIMEOUT


class CodesOfClosedSocketsTest(unittest.TestCase):
    def expect_good_codes(self, text, cases):
        for kind, victim, is_good in cases:
            with self.subTest(kind, victim=victim):
                found = judge(record(scenario(kind, victims=[victim]), errors(text, code=2)), SLACK)
                self.assertEqual("code" not in {finding.kind for finding in found}, is_good, found)

    def test_a_peer_may_see_the_rest_of_a_message_in_a_new_connection(self):
        self.expect_good_codes(
            "the connection of rank 1 (pid 1001 on b) to rank 2 (pid 1002 on c) failed in operation 7 (barrier): TCP with rank 2 "
            "(pid 1002): it sent 0x00000011 where a frame begins, not 0x36545254; do all ranks run the same version?",
            (("close-sockets", 2, True), ("close-sockets", 3, False), ("kill", 2, False)))
        self.expect_good_codes(
            "the connection of rank 1 (pid 1001 on b) to rank 2 (pid 1002 on c) failed in operation 7 (barrier): TCP with rank 2 "
            "(pid 1002): it sent message 72 of channel 0, of which 28 are read; do all ranks run the same version?",
            (("close-sockets", 2, True), ("close-sockets", 3, False)))
        self.expect_good_codes(
            "the connection of rank 1 (pid 1001 on b) to rank 2 (pid 1002 on c) failed in operation 7 (barrier): TCP with rank 2 "
            "(pid 1002): it acknowledges messages that were never sent",
            (("close-sockets", 1, True), ("close-sockets", 3, False), ("reset", 1, False)))

    def test_its_own_call_may_meet_a_number_that_is_closed(self):
        self.expect_good_codes(
            "trCommSplit: the connection of rank 2 (pid 1002 on c) to rank 1 (pid 1001 on b) failed in the creation of the communicator: "
            "TCP with rank 1 (pid 1001): a descriptor for stream 0: Bad file descriptor",
            (("close-sockets", 2, True), ("close-sockets", 1, False), ("kill", 2, False)))


class CodesOfACutNetworkTest(unittest.TestCase):
    def test_who_comes_back_may_find_that_the_other_side_has_ended(self):
        gone = "rank 1 (pid 1001 on b) was lost in or before operation 15 (barrier): its connection has ended (Connection reset by peer), and " \
               "nothing listens at its addresses any more: it has ended, has closed its sockets, or something refuses connections in its place"
        silent = errors("no progress within 4 s in operation 15 (barrier): rank 2 (pid 1002 on c): its process does not answer", LATE)
        given = scenario("long-outage", seconds=6.0)
        lines = {0: silent, 1: silent, 2: errors(gone, LATE + 0.3), 3: silent}
        self.assertEqual(judge(record(given, lines, FAULT + 8), SLACK), [])
        # The network does not come back.
        self.assertIn("code", {finding.kind for finding in judge(record(scenario("link-cut"), lines), SLACK)})
        # A rank of its own side says so.
        wrong = {**lines, 2: silent, 0: errors(gone, LATE + 0.3)}
        self.assertIn("code", {finding.kind for finding in judge(record(given, wrong, FAULT + 8), SLACK)})
        # It was there all the time.
        lines[1] = [line for line in silent if line[1] != "destroyed"]
        self.assertIn("code", {finding.kind for finding in judge(record(given, lines, FAULT + 8), SLACK)})


class CodesOfALimitTest(unittest.TestCase):
    def codes(self, lines):
        given = scenario("no-descriptors", phase="shrink", victims=[2])
        return [finding for finding in judge(record(given, lines), SLACK) if finding.kind == "code"]

    def lines(self, of_one, of_victim, others=MISSING):
        def creation(text):
            return errors(text, LATE, began=FAULT - 0.1, call="shrink", members="0,1,2,3")
        return {0: creation(others), 1: creation(of_one), 2: errors(FULL, FAULT + 0.01, call="shrink", members="0,1,2,3")[:1] + of_victim,
                3: creation(others)}

    def test_one_that_takes_no_connection_does_not_answer(self):
        self.assertEqual(self.codes(self.lines(UNHEARD, fine(LATE))), [])
        other = UNHEARD.replace("rank 2 (pid 1002 on c)", "rank 3 (pid 1003 on d)")
        self.assertEqual([finding.rank for finding in self.codes(self.lines(other, fine(LATE)))], [1])

    def test_it_waits_for_those_that_are_still_in_the_creation(self):
        waits = errors(WAITS, LATE + 0.01, began=FAULT + 0.02, call="allreduce")
        self.assertEqual(self.codes(self.lines(MISSING, waits)), [])
        # Another rank that waits has no such reason.
        self.assertEqual([finding.rank for finding in self.codes(self.lines(MISSING, errors(WAITS.replace("Rank 2 waited", "Rank 1 waited"),
                          LATE + 0.01, began=FAULT + 0.02, call="allreduce")))], [2])
        # The one that it waits for has ended the creation; others have not.
        through = self.lines(MISSING, errors(WAITS, LATE + 0.6, began=FAULT + 0.3, call="allreduce"))
        through[0] = errors(MISSING, FAULT + 0.2, began=FAULT - 0.1, call="shrink", members="0,1,2,3")
        self.assertIn(2, [finding.rank for finding in self.codes(through)])
        # All ranks have ended the creation.
        late = errors(WAITS, LATE + 4, began=LATE + 0.5, call="allreduce")
        self.assertEqual([finding.rank for finding in self.codes(self.lines(MISSING, late))], [2])
