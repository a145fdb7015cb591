# SPDX-License-Identifier: Apache-2.0
"""Whom an error names as its cause, and whom it has to name."""

import re

from facts import BLAME, CREATIONS
from scenario import ABORT, DEATH, DIFFER, LEFT, LIMIT, NETWORK, OF_CONNECTIONS, STOP

# What a process says that has come to its own limit.
OWN_LIMIT = {"no-descriptors": re.compile(r"[Dd]escriptor|[Tt]oo many open files"), "no-memory": re.compile(r"memory|allocate")}


class Culprits:
    def __init__(self, facts):
        self._facts, self._scenario = facts, facts.scenario

    def faults(self, rank, error):
        """What is wrong with whom the error of that rank names."""
        if self._facts.misses_a_stranger(error) or self._facts.meets_a_recovery(error):
            return
        mentions, cause = self._facts.mentions(error), self._scenario.cause
        if cause in (DEATH, STOP, LEFT):
            yield from self._faults_of_victim(mentions, error)
        elif cause in (ABORT, DIFFER, LIMIT):
            yield from self._faults_of_doer(rank, mentions, error)
        elif cause == NETWORK:
            yield from self._faults_of_side(rank, mentions, error)

    def _faults_of_victim(self, mentions, error):
        scenario = self._scenario
        victims = scenario.victims
        meets = error.call in CREATIONS
        if error.call == "init" and self._facts.named_as_maker(error) & set(victims):
            return
        named = [(pid, host) for base, pid, host, _, _, _ in mentions if base in victims]
        whole = list(filter(self._is_whole, named))
        # Who has not come to a rendezvous has no pid there.
        if not named or (not whole and not (meets and scenario.phase in ("init", "grow"))):
            yield f"it does not name rank {' or '.join(map(str, victims))}{self._parts()}"
        for base, _, _, blamed, rest, words in mentions:
            # One whose own call failed does not come to the next creation: it is missing indeed, and no more than that.
            is_missing = meets and self._facts.had_failed(base, error) and not BLAME.match(rest)
            if blamed and base not in victims and not is_missing:
                yield f"it blames {words}"
            if base in victims and scenario.cause in (DEATH, STOP) and re.match(r"^ (?:\([^)]*\) )?destroyed its", rest):
                yield f"{words} has not destroyed its communicator"
        if scenario.cause == LEFT and "destroyed its communicator" not in error.text and not meets:
            yield "it does not say that the rank left"

    def _is_whole(self, named):
        pid, host = named
        return pid is not None and (host is not None or self._scenario.hosts == 1)

    def _parts(self):
        return " with pid" + " and host" * (self._scenario.hosts > 1)

    def _faults_of_doer(self, rank, mentions, error):
        victims, cause = self._scenario.victims, self._scenario.cause
        if self._scenario.beside_shrink and (rank in victims or self._says_victim(error)):
            names = self._misses_the_answer_of_another(rank, error)
            if not names and not any(blamed or rest.startswith(" called") for _, _, _, blamed, rest, _ in mentions):
                yield "it does not say who was waited for"
            return
        if cause == LIMIT and rank in victims and not any(blamed for _, _, _, blamed, _, _ in mentions):
            if not self._says_limit(error) and not any(base in victims for base, *_ in mentions):
                yield "it says nothing of its own limit"
            return
        named = [(pid, host) for base, pid, host, _, _, _ in mentions if base in victims]
        # Who has not come to a rendezvous has no pid there.
        is_missing = error.call in CREATIONS and self._scenario.phase in ("init", "grow") and "missing: rank" in error.text
        is_enough = bool(named) and cause == LIMIT and (is_missing or self._says_victim(error))
        names = is_enough or any(map(self._is_whole, named))
        if not names and not self._facts.named_as_maker(error) & set(victims):
            yield f"it does not name rank {' or '.join(map(str, victims))}{self._parts()}"
        for base, _, _, blamed, rest, words in mentions:
            if self._facts.is_being_added(base, rest):
                continue
            if blamed and base not in victims and (cause == ABORT or not self._facts.had_failed(base, error)):
                if cause != LIMIT or not self._facts.was_in_creation(base, rest, error):
                    yield f"it blames {words}"

    # Beside a shrink the victim waits for the others, and names one of them. Others may hear that from it.
    def _says_victim(self, error):
        spoke = re.search(r"\bRank (\d+) waited for rank \d+", error.text)
        return spoke is not None and self._facts.base_rank(int(spoke[1]), None, error.members) in self._scenario.victims

    def _misses_the_answer_of_another(self, rank, error):
        found = re.search(r"\bno answer of rank (\d+)", error.text)
        other = self._facts.base_rank(int(found[1]), None, error.members) if found else None
        return other is not None and other != rank

    # Its own system call or allocation failed.
    def _says_limit(self, error):
        return OWN_LIMIT[self._scenario.kind].search(error.text) is not None

    # A rank on the other side of the fault is named.
    def _faults_of_side(self, rank, mentions, error):
        victims = self._scenario.victims
        if not victims:
            return
        if "verbs with rank" in error.text and not re.search(r", by \w+ port \d+ \(GID [^)]*\) to \w+ port \d+ \(GID", error.text):
            yield "it does not say which devices, ports and GIDs"
        named = {base for base, *_ in mentions if base is not None}
        for base, _, _, blamed, rest, words in mentions:
            if not blamed or base is None or (base in victims) != (rank in victims) or self._facts.had_failed(base, error):
                continue
            if self._scenario.kind == "close-sockets" and base in victims:
                continue  # it did it to itself
            if self._facts.was_in_creation(base, rest, error) or self._facts.is_behind_the_other_side(rank, rest):
                continue  # that is so; the other side has to be named besides
            if not self._facts.is_of_the_other_side(rank, error) and f"{words} waits for" not in error.text:
                yield f"it blames {words}, which is on its own side"
        if self._scenario.kind == "close-sockets" and named & set(victims):
            return
        if self._scenario.over == "ucx" and self._scenario.kind in OF_CONNECTIONS and named & set(victims):
            return  # its host's connections to itself were hit, too
        named |= self._facts.named_as_maker(error)
        if self._facts.names_other_host(rank, error):
            return
        if any(rest.startswith(" has not entered it") and self._facts.was_elsewhere(base, error) for base, _, _, _, rest, _ in mentions):
            return
        side = "a rank that was cut off" if rank not in victims else "a rank on the other side"
        if not any((base in victims) != (rank in victims) for base in named):
            yield f"it does not name {side}"
        elif error.call not in CREATIONS or self._scenario.phase not in ("init", "grow"):  # who has not come has no pid there
            others = [(pid, host) for base, pid, host, *_ in mentions if base is not None and (base in victims) != (rank in victims)]
            if others and not any(map(self._is_whole, others)) and not self._facts.is_of_the_other_side(rank, error):
                yield f"it does not name {side}{self._parts()}"
