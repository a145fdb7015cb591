# SPDX-License-Identifier: Apache-2.0
"""Which codes docs/failures.md promises for an error."""

import re

from facts import CREATIONS, errors_of
from scenario import ABORT, DEATH, DIFFER, LEFT, LIMIT, NETWORK, STOP

SYSTEM_ERROR, INVALID_USAGE, REMOTE_ERROR, TIMED_OUT = 2, 5, 6, 8  # include/treering/types.h
NAMES = {SYSTEM_ERROR: "trSystemError", INVALID_USAGE: "trInvalidUsage", REMOTE_ERROR: "trRemoteError", TIMED_OUT: "trTimeout"}
OF_CAUSE = {DEATH: {REMOTE_ERROR}, LEFT: {REMOTE_ERROR}, ABORT: {REMOTE_ERROR}, DIFFER: {INVALID_USAGE}, STOP: {TIMED_OUT},
            NETWORK: {TIMED_OUT}, LIMIT: {SYSTEM_ERROR}}
OF_KIND = {
    "stop-short": {TIMED_OUT},
    # To the others a process whose sockets are closed, or that refuses connections, has ended. It waits itself until its deadline.
    "close-sockets": {REMOTE_ERROR, TIMED_OUT},
    "reject": {REMOTE_ERROR, TIMED_OUT},
}
# Texts by which a rank hears of another's end beside what the cause promises.
OF_A_REMOTE_RANK = (
    # A process whose control connections get no memory ends.
    (LIMIT, re.compile(r"has ended|was lost")),
    # Its own call returned trSystemError; it could tell no more than that it failed.
    (LIMIT, re.compile(r"could not make the rendezvous root")),
    # What a rank sent last may be lost if the connection breaks while it destroys its communicator.
    (NETWORK, re.compile(r"destroyed its communicator|it has left, and (?:not all|does not take)")),
)


# What a rank says of a stream that begins in the middle of a message, lacks some, or has acknowledgements of another stream.
SPOILT = re.compile(r"where a frame begins|it sent message \d+ of channel \d+, of which \d+ are read|acknowledges messages that were never sent")


def promised(facts, rank, error):
    """Codes that the error may have; none: the documentation promises no code, as the fault is to be survived."""
    scenario = facts.scenario
    codes = set(OF_KIND.get(scenario.kind) or OF_CAUSE.get(scenario.cause, ()))
    if scenario.over != "own" and scenario.cause == NETWORK:
        codes.add(REMOTE_ERROR)  # a link that a library of others or a card has given up is not opened again
    if codes and _misses_a_rank(facts, error):
        codes.add(TIMED_OUT)
    if scenario.beside_shrink:
        # In the call after its failed one the victim may meet calls of others that do not fit.
        told = any(facts.had_failed(victim, error) for victim in scenario.victims)
        codes = {TIMED_OUT, INVALID_USAGE} if told or error.call not in CREATIONS else {TIMED_OUT}
    # A first connection that all addresses refuse is an error of the system, as where a port is wrong.
    if scenario.kind in ("close-sockets", "reject") and "Connection refused" in error.text:
        codes.add(SYSTEM_ERROR)
    # Until its library has noticed, a process writes the rest of a message into the connection that got the number of a closed one, and
    # makes calls with such numbers.
    if scenario.kind == "close-sockets":
        named = [base for base, *_ in facts.mentions(error)]
        if SPOILT.search(error.text) and set(named) & set(scenario.victims):
            codes.add(SYSTEM_ERROR)
        if "Bad file descriptor" in error.text and named[:1] and named[0] in scenario.victims:  # "the connection of rank 1 ..."
            codes.add(SYSTEM_ERROR)
    # One side came to its deadline first and left. Its ports are closed when the network is back.
    if scenario.cause == NETWORK and scenario.seconds and _is_of_closed_port(facts, rank, error):
        codes.add(REMOTE_ERROR)
    if codes and any(scenario.cause == cause and words.search(error.text) for cause, words in OF_A_REMOTE_RANK):
        codes.add(REMOTE_ERROR)
    return codes


def _is_of_closed_port(facts, rank, error):
    victims = facts.scenario.victims
    for base, _, _, _, rest, _ in facts.mentions(error):
        if "nothing listens at its addresses" in rest:
            return (base in victims) != (rank in victims) and any(
                line.word == "destroyed" and line.when <= error.when for line in facts.record.lines(base))
    return False


def _misses_a_rank(facts, error):
    """A rank that has not come by the deadline is missing: it ended before it had reached the others, or its own call has failed."""
    scenario = facts.scenario
    if "missing: rank" in error.text or "the process that made the unique id" in error.text:
        if scenario.cause == LIMIT:
            return error.call in CREATIONS
        return error.call in ("init", "grow")
    if scenario.cause != LIMIT:
        return False
    # A process that can take no connection does not answer those that hear of the others through it.
    if error.call in CREATIONS:
        silent = re.search(r"rank \d+ \(pid (\d+)[^)]*\), through which .* hears of the others, does not answer", error.text)
        return silent is not None and int(silent[1]) in {facts.pid(victim) for victim in scenario.victims}
    return "has not entered it" in error.text or _waits_for_a_creation(facts, error)


def _waits_for_a_creation(facts, error):
    """The one at its limit has given up a creation. In its next call it waits for ranks that are still in that creation."""
    waits = re.search(r"Rank (\d+) waited for rank (\d+)(?: \([^)]*\))?$", error.text)
    if waits is None:
        return False
    waiting, awaited = (facts.base_rank(int(number), None, error.members) for number in waits.groups())
    if waiting not in facts.scenario.victims or awaited is None:
        return False
    gave_up = any(own.call in CREATIONS and own.when <= error.began for own in errors_of(facts.record, waiting))
    return gave_up and any(other.call in CREATIONS and other.began < error.when and error.began < other.when
                           for other in errors_of(facts.record, awaited))


def fault_of_code(facts, rank, error):
    """What is wrong with the error's code; None: nothing."""
    codes = promised(facts, rank, error)
    if facts.meets_a_recovery(error):
        codes = {INVALID_USAGE}
    if not codes or error.code in codes:
        return None
    return f"{NAMES.get(error.code, error.code)} and not {' or '.join(NAMES[code] for code in sorted(codes))}"
