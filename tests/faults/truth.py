# SPDX-License-Identifier: Apache-2.0
"""What an error says of ranks that is not so: no load of the machine makes that right."""

import re

from scenario import ABORT, DEATH, LEFT

CALLED_DEAD = re.compile(r"^(?: has died| has ended|[^;]*?: its process has ended)")
# It is said of the rank that was mentioned last.
ENDED_OR_CLOSED = re.compile(r"^(?:(?!\b[Rr]anks? \d)[^;])*?: it has ended, (?:or )?has closed its sockets(, or something refuses connections)?")


DESTROYED = re.compile(r"^ (?:\([^)]*\) )?destroyed its communicator")
MOST_READ_LATER = 0.2
# A process that others are said to hang behind.
ENDED_ABOVE = re.compile(r"process \d+ \(pid (\d+)[^)]*\), which has ended")


def untruths(facts, error):
    mentions = facts.mentions(error)
    for base, pid, host, _, _, words in mentions:
        if pid is not None and base is None:
            yield f"\"{words}\" is no rank of the run"
        elif pid is not None and host is not None and host != facts.host(base):
            yield f"\"{words}\" is on {facts.host(base)}"
    dead = facts.scenario.victims if facts.scenario.cause == DEATH else []
    for base, _, _, _, rest, words in mentions:
        if base is None:
            continue
        if base not in dead and (CALLED_DEAD.match(rest) or _is_wrongly_gone(facts, base, rest, error)):
            yield f"{words} is called dead and lives"
        if base in dead and re.match(r"^ is alive", rest):
            yield f"{words} is called alive and is dead"
        # Communicators that are made and destroyed all the time are none that a failure ends.
        is_kept = error.members is None and facts.scenario.phase != "init"
        if DESTROYED.match(rest) and is_kept and not _has_destroyed(facts, base, error):
            yield f"{words} has not destroyed its communicator by then"
    for pid in ENDED_ABOVE.findall(error.text):
        if int(pid) not in {facts.pid(rank) for rank in dead}:
            yield f"process {pid} is called dead and lives"


def _has_destroyed(facts, base, error):
    if base in facts.scenario.victims and facts.scenario.cause in (LEFT, ABORT):
        return True
    for line in facts.record.lines(base):
        # What a rank says is read a moment later, and its seconds are rounded.
        if line.word == "destroyed" and line.when - float(line.rest.split()[1]) <= error.when + MOST_READ_LATER:
            return True
    return False


def _is_wrongly_gone(facts, base, rest, error):
    """It neither has closed its sockets nor, where the text grants that, do others refuse connections to it."""
    found = ENDED_OR_CLOSED.match(rest)
    if found is None:
        return False
    kind, is_hit = facts.scenario.kind, base in facts.scenario.victims
    if is_hit and (kind == "close-sockets" or (found[1] and kind == "reject")):
        return False
    # A rank that has destroyed its communicator has closed its sockets.
    return not any(line.word == "destroyed" and line.when <= error.when for line in facts.record.lines(base))
