# SPDX-License-Identifier: Apache-2.0
"""Judges a Record (run_one.py) by what the ranks said alone: a list of findings, empty when all is as it should be.

Classes of findings: hang, late, wrong, untold, culprit, left over, unexpected, crash, driver.
"""

import collections
import re
import signal

from scenario import ABORT, CALLING, DEATH, DIFFER, EITHER, ERROR, LEFT, LIMIT, NETWORK, OF_CONNECTIONS, STOP, SURVIVE

CLASSES = ("hang", "late", "wrong", "untold", "culprit", "left over", "unexpected", "crash", "driver")
Finding = collections.namedtuple("Finding", "kind rank text")
Error = collections.namedtuple("Error", "code began when call members text")

# "rank 2 (pid 7 on a, stopped ...)", "ranks 0, 1 (pid 7 on a)"
MENTION = re.compile(r"\b[Rr]anks? (\d+(?:(?:, | and )\d+)*)(?: \(pid (\d+)(?: on ([^\s,)]+))?[^)]*\))?")
# What follows the mention of a rank that is said to be at fault.
BLAME = re.compile(r"^,?(?: (?:was lost|has died|has ended|destroyed its|does not answer|has shown no sign|has not entered|is gone"
                   r"|stopped answering)|: its process (?:has ended|does not answer)|: its connection has ended|: nothing listens|: cut off)")
MISSING = re.compile(r"missing: (?:(?!\. Meanwhile)[^;])*$")  # in front of the mention of a rank that has not come
CALLED_DEAD = re.compile(r"^(?: has died| has ended|[^;]*?: its process has ended)")
# What a status of a card may mean in general is no word about this rank.
ADVICE = re.compile(r"does not acknowledge: its process has ended, the link is down")
# The one that docs/ucx.md describes; any other is a crash.
ASSERTION_OF_UCX = re.compile(r"\bucp_request\.c:\d+ +Assertion .*got REP message")
# What a process says that has come to its own limit.
OWN_LIMIT = {"no-descriptors": re.compile(r"[Dd]escriptor|[Tt]oo many open files"), "no-memory": re.compile(r"memory|allocate")}
# Where a sanitizer's report begins. It need not end the process: without a descriptor the sanitizer cannot read that it should.
REPORT = re.compile(r"runtime error: |Sanitizer\b")
MOST_LINES, MOST_LETTERS = 12, 200  # of a report, and of each of its lines: continuous integration keeps the finding alone
MOST_LEFT = {"sockets": 0, "memfds": 0, "descriptors": 4, "threads": 1, "mapped": 0}
# A communicator that was not made leaves endpoints behind that UCX cannot close while a peer's host is silent (docs/ucx.md).
KEPT_BY_UCX = {"sockets": 12, "descriptors": 28, "threads": 1}
ANSWER_AGAIN = ("outage", "reset", "reset-sockets", "shutdown-sockets", "reject", "loss", "tiny-buffers")
# Seconds within which a death is told: where all share a machine; over TCP, as it may have connected others that must find a new
# place in the tree; over networks of others. A rank that ends before it comes to a rendezvous is missing until the deadline.
TOLD_NEAR, TOLD_OVER_TCP, TOLD_WITHIN = 1, 4, 3
CREATIONS = ("init", "split", "dup", "shrink", "grow")
REMOTE_ERROR, TIMED_OUT, INVALID_USAGE = 6, 8, 5


def errors_of(record, rank):
    result = []
    for line in record.lines(rank):
        if line.word == "error":
            code, began, call, members, *text = line.rest.split(" ", 4)
            ranks = None if members == "-" else [int(member) for member in members.split(",")]
            result.append(Error(int(code), float(began), line.when, call, ranks, text[0] if text else ""))
    return result


class Judge:
    def __init__(self, record, slack):
        self._record, self._scenario, self._slack = record, record.scenario, slack
        self._findings = []

    def findings(self):
        scenario = self._scenario
        if self._record.trouble:
            self._judge_start()
        else:
            self._judge_hit()
        for rank in range(scenario.ranks):
            self._judge_words(rank)
            if rank not in scenario.gone and not self._record.trouble:
                self._judge_outcome(rank)
        for process in self._record.processes:
            self._judge_process(process)
        if self._record.left_in_memory:
            self._add("left over", -1, f"names in /dev/shm: {self._record.left_in_memory}")
        return self._findings

    def _add(self, kind, rank, text):
        self._findings.append(Finding(kind, rank, text))

    # Nothing was done to the ranks yet, but for what is there from the start.
    def _judge_start(self):
        for rank in range(self._scenario.ranks):
            for error in errors_of(self._record, rank):
                return self._add("unexpected", rank, f"before the fault, {error.call}: {error.text}")
        self._add("driver", -1, self._record.trouble)

    # A fault that met nothing shows nothing. While communicators come and go there may be no connection for a moment.
    def _judge_hit(self):
        scenario = self._scenario
        if scenario.kind not in OF_CONNECTIONS or scenario.phase in ("init", "destroy", "grow"):
            return
        deed = OF_CONNECTIONS[scenario.kind] + " "
        hit = self._record.reset + sum(int(line.rest[len(deed):]) for process in self._record.processes for line in process.lines
                                       if line.word == "did" and line.rest.startswith(deed))
        if hit == 0:
            self._add("driver", -1, "the fault has hit no connection")

    def _judge_words(self, rank):
        for line in self._record.lines(rank):
            if line.word == "wrong":
                self._add("wrong", rank, line.rest)
            if line.word == "destroyed":
                code, seconds = line.rest.split()
                stopped = self._scenario.seconds if self._scenario.kind == "stop-short" and rank in self._scenario.victims else 0
                if code != "0" or float(seconds) > 2 + stopped + self._slack:
                    self._add("late", rank, f"trCommDestroy returned {code} after {seconds} s")

    def _judge_outcome(self, rank):
        record, scenario = self._record, self._scenario
        lines = record.lines(rank)
        errors = errors_of(record, rank)
        ok = next((line for line in lines if line.word == "ok"), None)
        early = [error for error in errors if error.when < record.fault_at]
        if early:
            return self._add("unexpected", rank, f"before the fault, {early[0].call}: {early[0].text}")
        if not errors and ok is None:
            last = f"{lines[-1].word} {lines[-1].rest}" if lines else "nothing"
            return self._add("hang", rank, f"no result {record.over_at - record.fault_at:.1f} s after the fault; it said last: {last}")
        self._judge_agreement(rank, ok)
        if not errors:
            if scenario.outcome == ERROR and not self._was_told(rank, ok):
                self._add("untold", rank, "it has seen no error")
            return None
        if scenario.outcome == SURVIVE:
            self._add("unexpected", rank, f"{errors[0].call} after {errors[0].when - record.fault_at:.1f} s: {errors[0].text}")
            return None
        for error in errors:
            self._judge_error(rank, error)
        self._judge_repetition(rank, lines, errors)
        self._judge_recovery(rank, lines)
        return None

    def _was_told(self, rank, ok):
        """Its calls succeeded, as it had all that it needed; in the last one a rank whose creation had failed asked all to stop."""
        if self._scenario.cause != NETWORK or ok is None:
            return False
        return any(error.members is not None and error.when <= ok.when for other in range(self._scenario.ranks)
                   if other != rank for error in errors_of(self._record, other))

    # All agree when the last has come to it. A slow network is no failure as long as something moves.
    def _judge_agreement(self, rank, ok):
        record, scenario = self._record, self._scenario
        if ok is None or not record.stop_at:
            return
        failures = [error.when for other in range(scenario.ranks) for error in errors_of(record, other)]
        waited = ok.when - max([record.stop_at, *failures])
        waits = 2 if scenario.kind in ("loss", "tiny-buffers") else 1  # it may move for a while before it stands still
        if waited > waits * scenario.timeout + self._slack:
            self._add("late", rank, f"agreed to stop {waited:.1f} s after it was told to")

    def _judge_error(self, rank, error):
        since = max(self._record.fault_at, error.began, self._came_late(rank, error))
        taken = error.when - since
        if taken > self._most_seconds(error) + self._slack:
            self._add("late", rank, f"{error.call} failed {taken:.2f} s after it began or the fault: {error.text}")
        if error.call == "recover":
            return  # judged as a whole
        for fault in self._faults_of_text(rank, error):
            self._add("culprit", rank, f"{fault}: [{error.call}] {error.text}")

    def _most_seconds(self, error):
        scenario = self._scenario
        if scenario.kind == "loss" and (error.members is None or error.call == "init"):
            return 2 * scenario.timeout  # a call may move for a while before it stands still; trCommInitRank has two deadlines
        if scenario.over == "own":
            is_seen = scenario.cause == DEATH and not (error.call == "init" and "missing: rank" in error.text)
            is_seen = is_seen and not self._never_comes(error) and not self._waits_for_a_call(error)
            told = TOLD_NEAR if scenario.hosts == 1 else TOLD_OVER_TCP
            return min(scenario.timeout, told) if is_seen else scenario.timeout
        if scenario.cause == DEATH and scenario.phase in CALLING:
            return min(scenario.timeout, TOLD_WITHIN)
        # Before the last exchange of a creation pairs of ranks try to reach one another, for half of the deadline.
        return scenario.timeout * (1.5 if error.call in CREATIONS else 1)

    def _came_late(self, rank, error):
        """When the last rank whose creation had failed came to a call of all, which moved by that; its deadline is for a wait."""
        if error.members is not None:
            return 0
        return max((other.when for peer in range(self._scenario.ranks) if peer != rank for other in errors_of(self._record, peer)
                    if other.members is not None and other.when < error.when), default=0)

    # The next call fails as the last did.
    def _judge_repetition(self, rank, lines, errors):
        again = next((line for line in lines if line.word == "again"), None)
        last = next((error for error in reversed(errors) if error.members is None), None)
        if again is None or last is None:
            return
        code, _, text = again.rest.partition(" ")
        if code == "0":
            self._add("untold", rank, f"the call after the failure succeeded: {last.text}")
        elif text != last.text and self._scenario.cause != LIMIT:
            self._add("culprit", rank, f"the next call says other words: {last.text} / {text}")

    def _judge_recovery(self, rank, lines):
        if not self._scenario.excluded or any(line.word == "recovered" for line in lines):
            return
        texts = [error.text for error in errors_of(self._record, rank) if error.when >= self._record.fault_at]
        self._add("unexpected", rank, f"the survivors could not go on: {texts[-1] if texts else 'no error'}")

    def _base_rank(self, number, pid, members):
        """The rank that a text means; None: there is none such. Ranks of one process have one pid: the victim is meant then."""
        numbers = [members[number]] if members is not None and number < len(members) else []
        numbers += [number] if number < self._scenario.ranks else []
        found = [rank for rank in numbers if pid is None or self._pid(rank) == pid]
        if pid is not None and len(found) > 1 and found[1] in self._scenario.victims:
            return found[1]
        return found[0] if found else None

    def _named_as_maker(self, error):
        """Ranks of the process that made the id, which have no number before they have met."""
        pids = {int(pid) for pid in re.findall(r"made the unique id \(pid (\d+)", error.text)}
        return {rank for rank in range(self._scenario.ranks) if self._pid(rank) in pids}

    def _pid(self, rank):
        return self._record.process_of(rank).pid

    def _host(self, rank):
        return self._record.names[self._record.process_of(rank).host]

    def _mentions(self, error):
        """(rank of the base communicator or None, whether with pid, host, whether blamed, what follows)"""
        result = []
        # Who has come, and cannot be heard because of a victim, is missing indeed: the text says through whom.
        explained = any(int(pid) in {self._pid(rank) for rank in self._scenario.victims}
                        for pid in re.findall(r"heard through rank \d+ \(pid (\d+)", error.text))
        text = ADVICE.sub("does not acknowledge", error.text)
        for found in MENTION.finditer(text):
            pid = int(found[2]) if found[2] else None
            rest = text[found.end():]
            missing = not explained and MISSING.search(text[:found.start()]) is not None
            for number in re.findall(r"\d+", found[1]):
                rank = self._base_rank(int(number), pid, error.members)
                result.append((rank, pid, found[3], bool(BLAME.match(rest)) or missing, rest, found[0]))
        return result

    def _faults_of_text(self, rank, error):
        mentions = self._mentions(error)
        for base, pid, host, _, _, words in mentions:
            if pid is not None and base is None:
                yield f"\"{words}\" is no rank of the run"
            elif pid is not None and host is not None and host != self._host(base):
                yield f"\"{words}\" is on {self._host(base)}"
        yield from self._faults_of_liveness(mentions, error)
        if self._misses_a_stranger(error):
            return
        cause = self._scenario.cause
        if cause in (DEATH, STOP, LEFT):
            yield from self._faults_of_victim(rank, mentions, error)
        elif cause in (ABORT, DIFFER, LIMIT):
            yield from self._faults_of_doer(rank, mentions, error)
        elif cause == NETWORK:
            yield from self._faults_of_side(rank, mentions, error)

    # What it says of who lives.
    def _faults_of_liveness(self, mentions, error):
        dead = self._scenario.victims if self._scenario.cause == DEATH else []
        for base, _, _, _, rest, words in mentions:
            if base is not None and base not in dead and CALLED_DEAD.match(rest):
                yield f"{words} is called dead and lives"
            if base in dead and re.match(r"^ is alive", rest):
                yield f"{words} is called alive and is dead"

    def _misses_a_stranger(self, error):
        """A rank that is added knows nothing of the communicator of the others, which have a call of their own to end first; and they
        know nothing of one that was to be added, and is gone before it has come."""
        if self._scenario.phase != "grow":
            return False
        if error.call == "init" and any(self._had_failed(maker, error) for maker in self._named_as_maker(error)):
            return True
        if self._never_comes(error):
            return "missing: rank" in error.text
        # Those that it misses are in a call that fails as well.
        missing = [base for base, _, _, blamed, _, _ in self._mentions(error) if blamed]
        return error.call == "init" and bool(missing) and all(
            base in self._scenario.victims or (base is not None and errors_of(self._record, base)) for base in missing)

    def _never_comes(self, error):
        return self._scenario.phase == "grow" and error.call == "grow" and self._scenario.ranks - 1 in self._scenario.victims

    def _waits_for_a_call(self, error):
        """A rank that is to be added hears of the others' trCommGrow alone, which they do not call if their shrink fails."""
        if self._scenario.phase != "grow" or error.call != "init":
            return False
        return not any(other.call == "grow" for rank in range(self._scenario.ranks) for other in errors_of(self._record, rank))

    def _is_being_added(self, rank, rest):
        """It is in a call of its own, which ends at its deadline."""
        return self._scenario.phase == "grow" and rank == self._scenario.ranks - 1 and rest.startswith(" has not entered it")

    def _faults_of_victim(self, rank, mentions, error):
        scenario = self._scenario
        victims = scenario.victims
        meets = error.call in CREATIONS
        if error.call == "init" and self._named_as_maker(error) & set(victims):
            return
        named = [(pid, host) for base, pid, host, _, _, _ in mentions if base in victims]
        whole = [(pid, host) for pid, host in named if pid is not None and (host is not None or scenario.hosts == 1)]
        # Who has not come to a rendezvous has no pid there.
        if not named or (not whole and not (meets and scenario.phase in ("init", "grow"))):
            yield f"it does not name rank {' or '.join(map(str, victims))} with pid" + " and host" * (scenario.hosts > 1)
        for base, _, _, blamed, rest, words in mentions:
            if blamed and base not in victims and not (meets and self._had_failed(base, error)):
                yield f"it blames {words}"
            if base in victims and scenario.cause in (DEATH, STOP) and re.match(r"^ (?:\([^)]*\) )?destroyed its", rest):
                yield f"{words} has not destroyed its communicator"
        if scenario.cause == LEFT and "destroyed its communicator" not in error.text and not meets:
            yield "it does not say that the rank left"

    # Ranks whose own call failed do not come to the next rendezvous: they are missing indeed.
    def _had_failed(self, rank, error):
        return rank is not None and any(other.when < error.when for other in errors_of(self._record, rank))

    # Its call on another communicator failed during this one, which it entered too late, or not at all.
    def _was_elsewhere(self, rank, error):
        return rank is not None and any(other.members is not None and error.began < other.when < error.when
                                        for other in errors_of(self._record, rank))

    # It could not enter this call: its own creation, which the victim has given up, was yet to fail.
    def _was_in_creation(self, rank, rest, error):
        return rank is not None and error.members is None and rest.startswith(" has not entered it") and any(
            other.members is not None and other.began < error.when for other in errors_of(self._record, rank))

    def _faults_of_doer(self, rank, mentions, error):
        victims, cause = self._scenario.victims, self._scenario.cause
        if cause == LIMIT and rank in victims and not any(blamed for _, _, _, blamed, _, _ in mentions):
            if not self._says_limit(error) and not any(base in victims for base, *_ in mentions):
                yield "it says nothing of its own limit"
            return
        if not any(base in victims for base, *_ in mentions) and not self._named_as_maker(error) & set(victims):
            yield f"it does not name rank {' or '.join(map(str, victims))}"
        if cause == DIFFER and error.code != INVALID_USAGE:
            yield f"code {error.code} for calls that differ"
        for base, _, _, blamed, rest, words in mentions:
            if self._is_being_added(base, rest):
                continue
            if blamed and base not in victims and (cause == ABORT or not self._had_failed(base, error)):
                if cause != LIMIT or not self._was_in_creation(base, rest, error):
                    yield f"it blames {words}"

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
        if self._scenario.kind == "close-sockets" and named & set(victims):
            return  # the process did it to itself
        for base, _, _, blamed, _, words in mentions:
            if not blamed or base is None or (base in victims) != (rank in victims) or self._had_failed(base, error):
                continue
            if not self._is_of_the_other_side(rank, error) and f"{words} waits for" not in error.text:
                yield f"it blames {words}, which is on its own side"
        if self._scenario.over == "ucx" and self._scenario.kind in OF_CONNECTIONS and named & set(victims):
            return  # its host's connections to itself were hit, too
        named |= self._named_as_maker(error)
        if self._names_other_host(rank, error):
            return
        if any(rest.startswith(" has not entered it") and self._was_elsewhere(base, error) for base, _, _, _, rest, _ in mentions):
            return
        if not any((base in victims) != (rank in victims) for base in named):
            side = "a rank that was cut off" if rank not in victims else "a rank on the other side"
            yield f"it does not name {side}"

    def _is_of_the_other_side(self, rank, error):
        """All have the words of the one that came to its deadline first, if they can reach each other again by then."""
        spoke = re.search(r"\bRank (\d+) waited for rank \d+|, says rank (\d+) ", error.text)
        speaker = self._base_rank(int(spoke[1] or spoke[2]), None, error.members) if spoke else None
        return speaker is not None and (speaker in self._scenario.victims) != (rank in self._scenario.victims)

    def _names_other_host(self, rank, error):
        """A process without ranks, on the other side, through which the rank heard of all others."""
        cut = {self._record.names[host] for host in self._scenario.victim_hosts}
        relays = re.findall(r"Answers come through process \d+ \(pid \d+ on ([^\s,)]+)\): its process does not answer", error.text)
        return any((host in cut) != (self._host(rank) in cut) for host in relays)

    def _judge_process(self, process):
        scenario = self._scenario
        gone = bool(process.ranks) and set(process.ranks) <= set(scenario.gone)
        first = process.ranks[0] if process.ranks else -1
        self._judge_end(process, first)
        if process.status is None:
            if not (gone and scenario.cause == STOP):
                self._add("hang", first, f"the process {process.pid} did not end")
            return
        left = next((line for line in process.lines if line.word == "left"), None)
        if left is not None:
            self._judge_left(process, first, left)

    def _judge_end(self, process, first):
        report, status = report_of_sanitizer(process), process.status or 0
        is_signal = status < 0 and not process.expected_signal
        if not report and not is_signal and status <= 0:
            return
        # Before the stack that a library may print.
        fatal = [line for line in process.log if re.search(r"Fatal|[Aa]ssert|Caught", line)][:3] if is_signal else []
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {process.status}"
        self._add("crash", first, f"the process {process.pid} ended {how}; it said: {' / '.join(report or fatal or process.log[-3:])}")

    def _judge_left(self, process, first, left):
        scenario = self._scenario
        if scenario.kind == "close-sockets":
            return  # it closed what was the library's
        most = dict(MOST_LEFT)
        if scenario.kind == "abort" and set(process.ranks) & set(scenario.victims):
            most["threads"] += 1  # of the streams: it has used one
        if self._may_still_meet(process):
            for name in ("sockets", "descriptors"):
                most[name] += 2 * scenario.ranks
            most["memfds"] += 1
        # A forked child holds its parent's sockets, and answers nothing.
        is_silent = scenario.kind == "kill-parent" or (scenario.cause in (NETWORK, STOP) and scenario.kind not in ANSWER_AGAIN)
        if scenario.over != "own" and is_silent and self._has_failed_to_create(process):
            for name, count in KEPT_BY_UCX.items():
                most[name] += count
        for part in left.rest.split():
            name, count = part.split("=")
            if int(count) > most[name]:
                self._add("left over", first, f"{left.rest} ({name}: {most[name]} at most)")
                return

    def _has_failed_to_create(self, process):
        return any(error.call in (*CREATIONS, "recover") for rank in process.ranks
                   for error in errors_of(self._record, rank))

    # The rendezvous root of a communicator that was not made goes on to tell those who come late. Its maker is the first rank.
    def _may_still_meet(self, process):
        scenario = self._scenario
        if scenario.phase == "init":
            return process is self._record.processes[0] and not scenario.relay
        # The first rank makes an id for each communicator that grows.
        if scenario.phase == "grow" and 0 in process.ranks:
            return any(errors_of(self._record, rank) for rank in range(scenario.ranks))
        return any(error.call in ("split", "dup", "shrink", "grow", "recover") for rank in process.ranks
                   for error in errors_of(self._record, rank)
                   if error.members is not None and error.members[0] in process.ranks)


def seconds_to_last_error(record):
    """From the fault to the last survivor's first error; None: there was none."""
    first = [min(error.when for error in errors) for rank in range(record.scenario.ranks) if rank not in record.scenario.gone
             if (errors := [error for error in errors_of(record, rank) if error.when >= record.fault_at])]
    return max(first) - record.fault_at if first and record.fault_at else None


def report_of_sanitizer(process):
    """The first lines of its first report; none: there is no report."""
    begin = next((number for number, text in enumerate(process.log) if REPORT.search(text)), len(process.log))
    return [text.strip()[:MOST_LETTERS] for text in process.log[begin:begin + MOST_LINES]]


def assertion_of_ucx(record):
    """The line by which UCX 1.13 ended a process that opened a connection which broke; None: there is none."""
    if record.scenario.over == "own":
        return None
    return next((text for process in record.processes for text in process.log if ASSERTION_OF_UCX.search(text)), None)


def judge(record, slack):
    return Judge(record, slack).findings()


__all__ = ["CLASSES", "EITHER", "Finding", "assertion_of_ucx", "errors_of", "judge", "seconds_to_last_error"]
