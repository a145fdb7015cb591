# SPDX-License-Identifier: Apache-2.0
"""Tests of what is true at a deadline, on a machine that may leave a process without a processor for longer than that."""

import sys
import unittest

ATTEMPTS = 3


class InThreeAttempts(unittest.TestCase):
    """Each test runs until its expectations hold, three times at most; what else it raises fails it at once. tests/run lists the attempts
    that failed at its end."""

    def run(self, result=None):
        for attempt in range(1, ATTEMPTS):
            trial = unittest.TestResult()
            super().run(trial)
            if trial.errors or trial.wasSuccessful():
                return self._report(trial, result)
            for _, text in trial.failures:
                print(text, file=sys.stderr)
            print(f"attempt {attempt} of {ATTEMPTS} failed: {self.id()}", file=sys.stderr)
        return super().run(result)

    def _report(self, trial, result):
        result.startTest(self)
        if trial.wasSuccessful() and not trial.skipped:
            result.addSuccess(self)
        # As texts: what was raised is not kept.
        result.failures.extend(trial.failures)
        result.errors.extend(trial.errors)
        for test, reason in trial.skipped:
            result.addSkip(test, reason)
        result.stopTest(self)
        return result
