# SPDX-License-Identifier: Apache-2.0
"""Tests of what is true at a deadline, on a machine that may leave a process without a processor for longer than that."""

import sys
import unittest

ATTEMPTS = 3


class InThreeAttempts(unittest.TestCase):
    """Each test runs until it succeeds, three times at most. tests/run lists the attempts that failed at its end."""

    def run(self, result=None):
        for attempt in range(1, ATTEMPTS):
            trial = unittest.TestResult()
            super().run(trial)
            if trial.wasSuccessful():
                return self._report(trial, result)
            for _, text in trial.failures + trial.errors:
                print(text, file=sys.stderr)
            print(f"attempt {attempt} of {ATTEMPTS} failed: {self.id()}", file=sys.stderr)
        return super().run(result)

    def _report(self, trial, result):
        result.startTest(self)
        if not trial.skipped:
            result.addSuccess(self)
        for test, reason in trial.skipped:
            result.addSkip(test, reason)
        result.stopTest(self)
        return result
