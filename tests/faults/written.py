# SPDX-License-Identifier: Apache-2.0
"""Hand-written runs for the tests of the judge."""

import dataclasses
import re

from group import Line, Process
from run_one import Record
from scenario import KINDS, LIMIT, Scenario

HOSTS = ["a", "b", "c", "d"]
FAULT = 100.0
TIMEOUT = 4.0
SLACK = 0.5
LEFT = "sockets=0 memfds=0 descriptors=2 threads=1 mapped=0"
DIED = "rank 2 (pid 1002 on c) has died in or before operation 7 (barrier); its last completed operation is 6"
SILENT = "no progress within 4 s in operation 7 (barrier): rank 2 (pid 1002 on c): its process does not answer (4.0 s by now)"


def scenario(kind="kill", **changes):
    victims = {"process": [2], "rank": [2], "host": [2]}.get(KINDS[kind].victims, [])
    base = Scenario(1, 7, kind, "tcp-4x1", "small", [(rank, [rank]) for rank in range(4)], victims, victims, 0.1,
                    KINDS[kind].seconds[0], 0, 0, 8, 4096, False, TIMEOUT)
    return dataclasses.replace(base, **changes)


def code_of(text):
    """What the library returns with such a text."""
    if "differ" in text or "k-th" in text:
        return 5
    if re.search(r"descriptor is left|open files|memory", text):
        return 2
    return 8 if re.search(r"no progress|deadline passed|missing: ", text) else 6


def errors(text, when=FAULT + 0.1, code=None, began=FAULT - 0.1, call="barrier", members="-", again=None):
    """Lines of a rank that sees an error and ends."""
    code = code_of(text) if code is None else code
    return [(when, "error", f"{code} {began:.6f} {call} {members} {text}"), (when + 0.01, "again", f"{code} {again or text}"),
            (when + 0.02, "destroyed", "0 0.001"), (when + 0.1, "left", LEFT), (when + 0.1, "end", "")]


def fine(when=FAULT + 1):
    return [(when, "ok", ""), (when, "destroyed", "0 0.000"), (when, "left", LEFT), (when, "end", "")]


def record(given, lines, stop_at=0.0, statuses=None, killed=()):
    """One process a rank; `lines` of each rank, or of all that are not gone."""
    processes = []
    for rank in range(given.ranks):
        gone = rank in given.gone
        ended = [(FAULT, "gone", "0")] if given.kind in ("abort", "leave") else []
        limited = [(FAULT, "did", f"{given.kind} 1")] if given.cause == LIMIT and rank in given.victims else []
        own = lines.get(rank, []) if isinstance(lines, dict) else ended if gone else lines
        own = limited + own
        status = (statuses or {}).get(rank, -9 if gone else 0)
        processes.append(Process(1000 + rank, rank, [rank], [Line(when, rank, word, rest) for when, word, rest in own],
                                 status=status, expected_signal=gone or rank in killed))
    return Record(given, HOSTS, processes, FAULT, stop_at, FAULT + 12)
