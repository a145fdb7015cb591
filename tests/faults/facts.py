# SPDX-License-Identifier: Apache-2.0
"""What a Record (run_one.py) says: errors, whom their texts mention and blame, and what became of those ranks."""

import collections
import re

from scenario import CALLING, DEATH

Error = collections.namedtuple("Error", "code began when call members text")
CREATIONS = ("init", "split", "dup", "shrink", "grow")

# "rank 2 (pid 7 on a, stopped ...)", "ranks 0, 1 (pid 7 on a)"
MENTION = re.compile(r"\b[Rr]anks? (\d+(?:(?:, | and )\d+)*)(?: \(pid (\d+)(?: on ([^\s,)]+))?[^)]*\))?")
# What follows the mention of a rank that is said to be at fault.
BLAME = re.compile(r"^,?(?: (?:was lost|has died|has ended|destroyed its|does not answer|has shown no sign|has not entered|is gone"
                   r"|stopped answering|has not called it)|: its process (?:has ended|does not answer)|: its connection has ended|: nothing listens|: cut off)")
MISSING = re.compile(r"missing: (?:(?!\. Meanwhile)[^;])*$")  # in front of the mention of a rank that has not come
# What a status of a card may mean in general is no word about this rank.
ADVICE = re.compile(r"does not acknowledge: its process has ended, the link is down")


def errors_of(record, rank):
    result = []
    for line in record.lines(rank):
        if line.word == "error":
            code, began, call, members, *text = line.rest.split(" ", 4)
            ranks = None if members == "-" else [int(member) for member in members.split(",")]
            result.append(Error(int(code), float(began), line.when, call, ranks, text[0] if text else ""))
    return result


class Facts:
    def __init__(self, record):
        self.record, self.scenario = record, record.scenario

    def base_rank(self, number, pid, members):
        """The rank that a text means; None: there is none such. Ranks of one process have one pid: the victim is meant then."""
        numbers = [members[number]] if members is not None and number < len(members) else []
        numbers += [number] if number < self.scenario.ranks else []
        found = [rank for rank in numbers if pid is None or self.pid(rank) == pid]
        if pid is not None and len(found) > 1 and found[1] in self.scenario.victims:
            return found[1]
        return found[0] if found else None

    def named_as_maker(self, error):
        """Ranks of the process that made the id, which have no number before they have met."""
        pids = {int(pid) for pid in re.findall(r"made the unique id \(pid (\d+)", error.text)}
        return {rank for rank in range(self.scenario.ranks) if self.pid(rank) in pids}

    def pid(self, rank):
        return self.record.process_of(rank).pid

    def host(self, rank):
        return self.record.names[self.record.process_of(rank).host]

    def mentions(self, error):
        """(rank of the base communicator or None, whether with pid, host, whether blamed, what follows)"""
        result = []
        # Who has come, and cannot be heard because of a victim, is missing indeed: the text says through whom.
        explained = any(int(pid) in {self.pid(rank) for rank in self.scenario.victims}
                        for pid in re.findall(r"heard through (?:rank|process) \d+ \(pid (\d+)", error.text))
        text = ADVICE.sub("does not acknowledge", error.text)
        for found in MENTION.finditer(text):
            pid = int(found[2]) if found[2] else None
            rest = text[found.end():]
            missing = not explained and MISSING.search(text[:found.start()]) is not None
            for number in re.findall(r"\d+", found[1]):
                rank = self.base_rank(int(number), pid, error.members)
                result.append((rank, pid, found[3], bool(BLAME.match(rest)) or missing, rest, found[0]))
        return result

    def misses_a_stranger(self, error):
        """A rank that is added knows nothing of the communicator of the others, which have a call of their own to end first; and they
        know nothing of one that was to be added, and is gone before it has come."""
        if self.scenario.phase != "grow":
            return False
        if error.call == "init" and any(self.had_failed(maker, error) for maker in self.named_as_maker(error)):
            return True
        if self.never_comes(error):
            return "missing: rank" in error.text
        # Those that it misses are in a call that fails as well.
        missing = [base for base, _, _, blamed, _, _ in self.mentions(error) if blamed]
        return error.call == "init" and bool(missing) and all(
            base in self.scenario.victims or (base is not None and errors_of(self.record, base)) for base in missing)

    def meets_a_recovery(self, error):
        """A survivor whose shrink has failed already excludes the victims, while this rank is still in the shrink that they hold up."""
        found = re.search(r"the ranks' sets differ: rank (\d+) excludes (\d+(?:, \d+)*), rank \d+ does not", error.text)
        if found is None or error.call != "shrink":
            return False
        excluded = {int(number) for number in found[2].split(", ")}
        return excluded <= set(self.scenario.excluded) and self.had_failed(int(found[1]), error)

    def never_comes(self, error):
        return self.scenario.phase == "grow" and error.call == "grow" and self.scenario.ranks - 1 in self.scenario.victims

    def waits_for_a_call(self, error):
        """A rank that is to be added hears of the others' trCommGrow alone, which they do not call if their shrink fails."""
        if self.scenario.phase != "grow" or error.call != "init":
            return False
        return not any(other.call == "grow" for rank in range(self.scenario.ranks) for other in errors_of(self.record, rank))

    def is_being_added(self, rank, rest):
        """It is in a call of its own, which ends at its deadline."""
        return self.scenario.phase == "grow" and rank == self.scenario.ranks - 1 and rest.startswith(" has not entered it")

    # Ranks whose own call failed do not come to the next rendezvous: they are missing indeed.
    def had_failed(self, rank, error):
        return rank is not None and any(other.when < error.when for other in errors_of(self.record, rank))

    # Its call on another communicator failed during this one, which it entered too late, or not at all. Or that call was under way when this
    # one failed, and the network had been mended: the other side is not named, because it can be reached.
    def was_elsewhere(self, rank, error):
        is_back = 0 < self.record.passes_again_at < error.when
        return rank is not None and any(
            other.members is not None and other.began < error.when and error.began < other.when and (is_back or other.when < error.when)
            for other in errors_of(self.record, rank))

    # It could not enter this call: its own creation, which the victim has given up, was yet to fail.
    def was_in_creation(self, rank, rest, error):
        return rank is not None and error.members is None and rest.startswith(" has not entered it") and any(
            other.members is not None and other.began < error.when for other in errors_of(self.record, rank))

    def is_of_the_other_side(self, rank, error):
        """All have the words of the one that came to its deadline first, if they can reach each other again by then."""
        spoke = re.search(r"\bRank (\d+) waited for rank \d+|, says rank (\d+) ", error.text)
        speaker = self.base_rank(int(spoke[1] or spoke[2]), None, error.members) if spoke else None
        return speaker is not None and (speaker in self.scenario.victims) != (rank in self.scenario.victims)

    def is_behind_the_other_side(self, rank, rest):
        """It may live: it can be heard only through a process of the other side, which the words name."""
        behind = re.match(r": cut off behind process \d+ \(pid \d+ on ([^\s,)]+)\), which does not answer; whether it lives is not known", rest)
        return behind is not None and self._is_across(rank, behind[1])

    def _is_across(self, rank, host):
        cut = {self.record.names[victim] for victim in self.scenario.victim_hosts}
        return (host in cut) != (self.host(rank) in cut)

    def names_other_host(self, rank, error):
        """A process without ranks, on the other side, through which the rank heard of all others."""
        relays = re.findall(r"Answers (?:of others )?come through process \d+ \(pid \d+ on ([^\s,)]+)\): its process does not answer", error.text)
        relays += re.findall(r"process \d+ \(pid \d+ on ([^\s,)]+)\), through which .* hears of the others, has not passed it on", error.text)
        return any(self._is_across(rank, host) for host in relays)
