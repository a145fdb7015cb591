#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import unittest

from attempts import InThreeAttempts


def outcome_of(*results):
    """The outcome of a test that succeeds, fails, raises or is skipped by turns, how many turns are left, and what was printed."""
    left = list(results)

    class Case(InThreeAttempts):
        def test(self):
            with self.subTest("a part"):
                result = left.pop(0)
                if result == "raise":
                    raise RuntimeError("no expectation")
                if result == "skip":
                    self.skipTest("for a reason")
                self.assertTrue(result, "it was false")

    result, printed = unittest.TestResult(), io.StringIO()
    with contextlib.redirect_stderr(printed):
        Case("test").run(result)
    return result, len(left), printed.getvalue()


class InThreeAttemptsTest(unittest.TestCase):
    def test_one_that_succeeds_is_enough(self):
        result, left, printed = outcome_of(True, False, False)
        self.assertEqual((result.wasSuccessful(), result.testsRun, left, printed), (True, 1, 2, ""))

    def test_what_fails_is_printed_and_done_again(self):
        result, left, printed = outcome_of(False, True, False)
        self.assertEqual((result.wasSuccessful(), result.testsRun, left), (True, 1, 1))
        self.assertIn("it was false", printed)
        self.assertIn("attempt 1 of 3 failed: ", printed)

    def test_the_last_one_counts(self):
        result, left, printed = outcome_of(False, False, False)
        self.assertEqual((result.wasSuccessful(), left, len(result.failures)), (False, 0, 1))
        self.assertIn("attempt 2 of 3 failed: ", printed)

    def test_one_that_raises_is_the_last(self):
        result, left, _ = outcome_of("raise", True, True)
        self.assertEqual((result.wasSuccessful(), left, len(result.errors)), (False, 2, 1))

    def test_one_that_is_skipped_is_skipped(self):
        result, left, _ = outcome_of("skip", False)
        self.assertEqual((result.wasSuccessful(), left, [reason for _, reason in result.skipped]), (True, 1, ["for a reason"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
