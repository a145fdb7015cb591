# SPDX-License-Identifier: Apache-2.0
"""Judges a Record (run_one.py) by what the ranks said alone: a list of findings, empty when all is as it should be.

Classes of findings: hang; late, or overdue if by more than a loaded machine explains; wrong; untold; culprit, who is named; words, which differ between
ranks or calls; untrue, what is said of a rank; code; left over; unexpected, an error that the fault must not cause; spurious, one before the fault; crash; driver.
"""

import collections
import re
import signal

from bounds import calls_on_until, deed_at, most_seconds, most_seconds_of_destroy
from codes import TIMED_OUT, fault_of_code
from culprits import Culprits
from facts import CREATIONS, Facts, errors_of
from scenario import ABORT, CALLING, DEATH, DIFFER, ERROR, LEFT, LIMIT, NETWORK, OF_CONNECTIONS, STOP, SURVIVE
from truth import untruths

CLASSES = ("hang", "late", "overdue", "wrong", "untold", "culprit", "words", "untrue", "code", "left over", "unexpected", "spurious", "crash", "driver")
MOST_SLACKS = 2  # what comes later than so many times the slack after its bound is overdue
Finding = collections.namedtuple("Finding", "kind rank text")

# The one that docs/ucx.md describes; any other is a crash.
ASSERTION_OF_UCX = re.compile(r"\bucp_request\.c:\d+ +Assertion .*got REP message")
# Where a sanitizer's report begins. It need not end the process: without a descriptor the sanitizer cannot read that it should.
REPORT = re.compile(r"runtime error: |Sanitizer\b")
MOST_LINES, MOST_LETTERS = 12, 200  # of a report, and of each of its lines: continuous integration keeps the finding alone
MOST_LEFT = {"sockets": 0, "memfds": 0, "descriptors": 4, "threads": 1, "mapped": 0}
# A communicator that was not made leaves endpoints behind that UCX cannot close while a peer's host is silent (docs/ucx.md).
KEPT_BY_UCX = {"sockets": 12, "descriptors": 28, "threads": 1}
# Not STOP: ranks that come to the deadline in the same moment may each say whom they waited for.
ONE_CAUSE = (DEATH, LEFT, ABORT, DIFFER)
ANSWER_AGAIN = ("outage", "reset", "reset-sockets", "shutdown-sockets", "reject", "loss", "tiny-buffers")


class Judge:
    def __init__(self, record, slack):
        self._record, self._scenario, self._slack = record, record.scenario, slack
        self._facts = Facts(record)
        self._culprits = Culprits(self._facts)
        self._findings = []

    def findings(self):
        scenario = self._scenario
        if self._record.trouble:
            self._judge_start()
        else:
            self._judge_hit()
        for rank in range(scenario.ranks):
            self._judge_words(rank)
            if rank in scenario.gone and not self._record.trouble:
                self._judge_going(rank)
            if rank not in scenario.gone and not self._record.trouble:
                self._judge_outcome(rank)
        for process in self._record.processes:
            self._judge_process(process)
        self._judge_one_cause()
        if self._record.left_in_memory:
            self._add("left over", -1, f"names in /dev/shm: {self._record.left_in_memory}")
        return self._findings

    def _add(self, kind, rank, text):
        self._findings.append(Finding(kind, rank, text))

    def _judge_seconds(self, rank, taken, most, text):
        if taken > most + self._slack:
            self._add("overdue" if taken > most + MOST_SLACKS * self._slack else "late", rank, text)

    # Nothing was done to the ranks yet, but for what is there from the start.
    def _judge_start(self):
        for rank in range(self._scenario.ranks):
            for error in errors_of(self._record, rank):
                return self._add("spurious", rank, f"before the fault, {error.call}: {error.text}")
        self._add("driver", -1, self._record.trouble)

    # A fault that met nothing shows nothing. While communicators come and go there may be no connection for a moment.
    def _judge_hit(self):
        scenario = self._scenario
        if scenario.cause == LIMIT and not any(line.word == "did" and line.rest == f"{scenario.kind} 1"
                                               for process in self._record.processes for line in process.lines):
            return self._add("driver", -1, "no limit was set")
        if scenario.kind not in OF_CONNECTIONS or scenario.phase in ("init", "destroy", "grow"):
            return None
        deed = OF_CONNECTIONS[scenario.kind] + " "
        hit = self._record.reset + sum(int(line.rest[len(deed):]) for process in self._record.processes for line in process.lines
                                       if line.word == "did" and line.rest.startswith(deed))
        if hit == 0:
            self._add("driver", -1, "the fault has hit no connection")
        return None

    def _judge_words(self, rank):
        for line in self._record.lines(rank):
            if line.word == "wrong":
                self._add("wrong", rank, line.rest)
            if line.word == "destroyed":
                code, seconds = line.rest.split()
                most = most_seconds_of_destroy(self._scenario, rank)
                self._judge_seconds(rank, float(seconds), most, f"trCommDestroy took {seconds} s")
                self._judge_end_of_communicator(rank, "trCommDestroy", code)
            if line.word == "gone":
                self._judge_end_of_communicator(rank, "trCommAbort" if self._scenario.kind == "abort" else "trCommDestroy", line.rest)

    def _judge_going(self, rank):
        if self._scenario.kind in ("abort", "leave") and not any(line.word == "gone" for line in self._record.lines(rank)):
            self._add("hang", rank, f"its {self._scenario.kind} did not end")

    # It succeeds on a communicator that has failed, too.
    def _judge_end_of_communicator(self, rank, call, code):
        if code != "0":
            self._add("code", rank, f"{call} returned {code}")

    def _judge_outcome(self, rank):
        record, scenario = self._record, self._scenario
        lines = record.lines(rank)
        errors = errors_of(record, rank)
        ok = next((line for line in lines if line.word == "ok"), None)
        for error in errors:
            for untruth in untruths(self._facts, error):
                self._add("untrue", rank, f"{untruth}: [{error.call}] {error.text}")
        early = [error for error in errors if error.when < record.fault_at]
        if early:
            return self._add("spurious", rank, f"before the fault, {early[0].call}: {early[0].text}")
        if not errors and ok is None:
            last = f"{lines[-1].word} {lines[-1].rest}" if lines else "nothing"
            return self._add("hang", rank, f"no result {record.over_at - record.fault_at:.1f} s after the fault; it said last: {last}")
        self._judge_agreement(rank, ok)
        if not errors:
            if scenario.outcome == ERROR and not self._was_told(rank, ok):
                self._add("untold", rank, "it has seen no error")
            return None
        for error in errors:
            self._judge_code(rank, error)
        if scenario.outcome == SURVIVE:
            self._add("unexpected", rank, f"{errors[0].call} after {errors[0].when - record.fault_at:.1f} s: {errors[0].text}")
            return None
        for error in errors:
            self._judge_error(rank, error)
        self._judge_repetition(rank, lines, errors)
        self._judge_recovery(rank, lines)
        return None

    # All survivors must report the agreed verdict in the same words.
    def _judge_one_cause(self):
        scenario = self._scenario
        if scenario.cause not in ONE_CAUSE or scenario.phase not in CALLING or self._record.trouble:
            return
        texts = {error.text: rank for rank in range(scenario.ranks) if rank not in scenario.gone
                 for error in errors_of(self._record, rank) if error.members is None}
        if len(texts) > 1:
            self._add("words", max(texts.values()), "the survivors say different things: " + " / ".join(sorted(texts)))

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
        self._judge_seconds(rank, waited, waits * scenario.timeout, f"agreed to stop {waited:.1f} s after it was told to")

    def _judge_error(self, rank, error):
        taken = error.when - max(deed_at(self._record), error.began, self._came_late(rank, error))
        self._judge_seconds(rank, taken, most_seconds(self._facts, error),
                            f"{error.call} failed {taken:.2f} s after it began or the fault: {error.text}")
        until = calls_on_until(self._record)
        if until is not None and error.call != "recover":
            self._judge_seconds(rank, error.began - until, 0,
                                f"{error.call} began {error.began - self._record.fault_at:.2f} s after the fault: {error.text}")
        if error.call == "recover":
            return  # judged as a whole
        for fault in self._culprits.faults(rank, error):
            self._add("culprit", rank, f"{fault}: [{error.call}] {error.text}")

    def _judge_code(self, rank, error):
        fault = fault_of_code(self._facts, rank, error) if error.call != "recover" else None
        if fault is not None:
            self._add("code", rank, f"{fault}: [{error.call}] {error.text}")

    def _came_late(self, rank, error):
        """When the last rank came to a call of all, which moved by that: its deadline is for a wait."""
        if error.members is not None:
            return 0
        others = [(peer, other) for peer in range(self._scenario.ranks) if peer != rank for other in errors_of(self._record, peer)]
        after_creations = [other.when for _, other in others if other.members is not None and other.when < error.when]
        in_time = [other.began for peer, other in others if other.members is None and self._on_one_side(rank, peer)
                   and other.began < error.began + self._scenario.timeout]
        return max(after_creations + in_time, default=0) if error.code == TIMED_OUT else max(after_creations, default=0)

    def _on_one_side(self, rank, peer):
        """What comes from the other side of the fault moves nothing."""
        return (rank in self._scenario.victims) == (peer in self._scenario.victims)

    # The next call fails as the last did.
    def _judge_repetition(self, rank, lines, errors):
        again = next((line for line in lines if line.word == "again"), None)
        last = next((error for error in reversed(errors) if error.members is None), None)
        if again is None or last is None:
            return
        code, _, text = again.rest.partition(" ")
        if code == "0":
            self._add("untold", rank, f"the call after the failure succeeded: {last.text}")
        elif self._scenario.cause == LIMIT:
            return  # what it lacks it may lack for the next call alone
        elif code != str(last.code):
            self._add("code", rank, f"the next call returns {code} after {last.code}: {last.text} / {text}")
        elif text != last.text:
            self._add("words", rank, f"the next call says other words: {last.text} / {text}")

    def _judge_recovery(self, rank, lines):
        if not self._scenario.excluded or any(line.word == "recovered" for line in lines):
            return
        texts = [error.text for error in errors_of(self._record, rank) if error.when >= self._record.fault_at]
        self._add("unexpected", rank, f"the survivors could not go on: {texts[-1] if texts else 'no error'}")

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
        most = dict(MOST_LEFT)
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

    # Ids of trGetUniqueId() to which no rank has come: some may. The first rank makes one for each communicator that grows.
    def _may_still_meet(self, process):
        scenario = self._scenario
        if scenario.phase == "grow":
            return 0 in process.ranks and any(errors_of(self._record, rank) for rank in range(scenario.ranks))
        return scenario.phase == "init" and process is self._record.processes[0] and not scenario.relay


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


__all__ = ["CLASSES", "Finding", "assertion_of_ucx", "errors_of", "judge", "seconds_to_last_error"]
