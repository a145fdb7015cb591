# SPDX-License-Identifier: Apache-2.0
"""How long after a fault an error may come, as docs/failures.md promises it; without the slack."""

from facts import CREATIONS
from scenario import ABORT, CALLING, DEATH, DIFFER, ERROR, LEFT, NETWORK, STOP

# Seconds within which a death is told: where all share a machine; over TCP, as it may have connected others that must find a new
# place in the tree; over networks of others. A rank that ends before it comes to a rendezvous is missing until the deadline.
TOLD_NEAR, TOLD_OVER_TCP, TOLD_WITHIN = 1, 4, 3
# What a rank does itself it also tells, or the ranks see it as soon as they wait for one another.
DEEDS = (LEFT, ABORT, DIFFER)
DID = {"leave": "leave", "abort": "abort", "revoke": "revoke", "differ": "differ"}  # kind -> what the victim says
DESTROYED_WITHIN = 2  # seconds that trCommDestroy may take
CALLS_ON = 1  # seconds within which all ranks are in a call that needs the rank that is hit; large ones take that long


def most_seconds(facts, error):
    """From when it could first be known."""
    scenario = facts.scenario
    if scenario.kind == "loss" and (error.members is None or error.call == "init"):
        return 2 * scenario.timeout  # a call may move for a while before it stands still; trCommInitRank has two deadlines
    if scenario.over == "own":
        return min(scenario.timeout, _told_within(scenario)) if _is_told_at_once(facts, error) else scenario.timeout
    if scenario.cause in (DEATH, *DEEDS) and scenario.phase in CALLING:
        return min(scenario.timeout, TOLD_WITHIN)
    # Before the last exchange of a creation pairs of ranks try to reach one another, for half of the deadline.
    return scenario.timeout * (1.5 if error.call in CREATIONS else 1)


def most_seconds_of_destroy(scenario, rank):
    if scenario.kind == "stop-short" and rank in scenario.victims:
        return DESTROYED_WITHIN + scenario.seconds
    if scenario.cause == NETWORK:  # what was sent last is sent again by another connection: a stall and a second
        return max(DESTROYED_WITHIN, min(2.5, scenario.timeout / 4) + 1)
    return DESTROYED_WITHIN


def _told_within(scenario):
    return TOLD_OVER_TCP if scenario.cause == DEATH and scenario.hosts > 1 else TOLD_NEAR


def _is_told_at_once(facts, error):
    cause = facts.scenario.cause
    if cause not in (DEATH, *DEEDS) or facts.scenario.beside_shrink or facts.never_comes(error) or facts.waits_for_a_call(error):
        return False
    # Who has not come is missing until the deadline. A rank that grows the communicator waits for those whose shrink a revoke
    # has ended: they are members of the new one, which the revoke does not concern.
    waiting = ("init",) if cause == DEATH else ("init", "grow")
    return not (error.call in waiting and "missing: rank" in error.text)


def deed_at(record):
    """When the fault was there: the victim obeys between two calls, and says so."""
    deed = DID.get(record.scenario.kind)
    said = [line.when for process in record.processes for line in process.lines
            if deed is not None and line.word == "did" and line.rest.split(" ")[0] == deed]
    return max([record.fault_at, *said])


def calls_on_until(record):
    """When the last call begins that may fail; None: that is not known. All ranks of these phases wait for one another in each
    turn, so that none goes on without the one that is hit."""
    scenario = record.scenario
    if scenario.phase not in CALLING or scenario.outcome != ERROR or scenario.cause not in (DEATH, STOP, *DEEDS):
        return None
    return deed_at(record) + CALLS_ON
