# SPDX-License-Identifier: Apache-2.0
"""Which failures may be those of a machine that others load."""

from scenario import ABORT, CALLING, CREATING, DEATH, DIFFER, LEFT, LIMIT, NETWORK, STOP

# Classes of findings that depend on how soon the ranks run; any other is a defect in every run.
TIMED = {"late", "culprit", "words", "unexpected"}
# Faults that no load makes fatal to ranks that call. What a communicator sent last may be lost if it is destroyed at that moment.
ALWAYS_SURVIVED = {"kill-relay", "reset", "reset-sockets", "shutdown-sockets", "shm-full", "tiny-buffers"}
MOST_PERCENT = 1  # of the runs: more than twice what was measured beside other work; --tolerate grants no more
# UCX's assertion (docs/ucx.md) ended a process in 0.8 % of the runs beside other work. Then one set of 60 in ten has two such runs, and
# one in a thousand has four.
ENDED_BY_UCX_PERCENT = 2
ENDED_BY_UCX_OF_FEW = ((60, 3), (20, 1))  # from so many runs on: so many


def most_ended_by_ucx(runs):
    """In how many of so many runs an assertion of UCX may end a process."""
    of_few = next((most for least, most in ENDED_BY_UCX_OF_FEW if runs >= least), 0)
    return max(of_few, ENDED_BY_UCX_PERCENT * runs // 100)


def are_tolerated(failed, runs, percent):
    """Whether the failures [(scenario, findings)] of so many runs may be the load's: of a kind of fault one alone. One may fail also
    where that is more than the percentage: a single moment of load must not fail a set of 60 runs."""
    if not all(_is_timed(scenario, finding) for scenario, findings in failed for finding in findings):
        return False
    kinds = [scenario.kind for scenario, _ in failed]
    most = max(1, min(percent, MOST_PERCENT) * runs // 100) if percent > 0 else 0
    return len(set(kinds)) == len(kinds) and len(kinds) <= most


def _is_timed(scenario, finding):
    if finding.kind == "untold":
        return scenario.phase in CREATING  # a rank may be through with its part of a creation before it feels the fault
    if finding.kind == "unexpected" and scenario.kind in ALWAYS_SURVIVED and scenario.phase in CALLING:
        return False
    if finding.kind == "culprit" and scenario.cause in (DEATH, STOP, LEFT, ABORT, DIFFER):
        return False  # it is seen sooner or later, and never of another one
    if finding.kind == "words" and scenario.cause == DEATH:
        return False
    if finding.kind == "code":
        return scenario.cause in (NETWORK, LIMIT)  # which of several consequences a rank meets first
    return finding.kind in TIMED
