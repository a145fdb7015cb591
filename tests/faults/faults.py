#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fault injection: ranks in a phase, a fault at a random moment, and a judgement of what every survivor said.

usage: faults.py FAULTS_RANK [--runs N] [--seed S[,S...]] [--jobs N] [--only kind=...,transport=...,phase=...] [--idle]
       faults.py FAULTS_RANK --replay SEED:INDEX      one run, with the output of all ranks

Exit status 1 when a run failed, 77 when the machine cannot make the network namespaces.
"""

import argparse
import os
import queue
import signal
import sys
import threading
import time
import traceback

from group import Group, Stopped
from judge import Finding, assertion_of_ucx, judge, seconds_to_last_error
from network import SKIP, Hosts, Unavailable
from run_one import Record, Run, clean_environment
from scenario import CALLING, CREATING, KINDS, OVER, TRANSPORTS, draw
from table import Table
from tolerance import are_tolerated, most_ended_by_ucx

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from seed import given_seed  # noqa: E402

RUNS = {"own": 200, "ucx": 60, "verbs": 8}
MOST_DRAWS = 200_000  # for a filter that hardly any scenario passes


def parse_filter(text):
    known = {"kind": KINDS, "transport": TRANSPORTS, "phase": (*CREATING, *CALLING)}
    wanted = {}
    for part in filter(None, (text or "").split(",")):
        key, equals, value = part.partition("=")
        if key not in known or not equals:
            raise SystemExit(f"error: --only: \"{part}\": give kind=, transport= or phase=")
        for one in value.split("|"):
            if one not in known[key]:
                raise SystemExit(f"error: --only: no {key} \"{one}\"; there are {', '.join(known[key])}")
        wanted[key] = value.split("|")
    return wanted


def drawn(options, wanted, lacking, skipped):
    """The scenarios of this call; counts in `skipped` what the machine cannot do."""
    if options.replay:
        seed, colon, index = options.replay.partition(":")
        if not colon or not seed.isdigit() or not index.isdigit():
            raise SystemExit(f"error: --replay: \"{options.replay}\" is no SEED:INDEX")
        yield draw(int(seed), int(index), options.timeout, options.over)
        return
    for number, seed in enumerate(options.seed):
        share = options.runs // len(options.seed) + (number < options.runs % len(options.seed))
        yield from drawn_of_seed(options, seed, share, wanted, lacking, skipped)


def drawn_of_seed(options, seed, runs, wanted, lacking, skipped):
    found = 0
    for index in range(MOST_DRAWS):
        if found == runs:
            return
        scenario = draw(seed, index, options.timeout, options.over)
        if any(getattr(scenario, key) not in values for key, values in wanted.items()) or scenario.kind in options.without:
            continue
        found += 1
        missing = [need for need in KINDS[scenario.kind].needs if need in lacking]
        if missing:
            skipped[scenario.kind] = skipped.get(scenario.kind, 0) + 1
        else:
            yield scenario


def run(hosts, program, scenario, slack):
    """(Record, findings)"""
    group = Group(hosts.lab, program)
    record = Record(scenario, hosts.lab.names, group.processes)
    try:
        one = Run(hosts, group, scenario, slack)
        record = one.record
        one.go()
        return record, judge(record, slack)
    except Stopped:
        return record, [Finding("driver", -1, "stopped")]
    except Exception:
        return record, [Finding("driver", -1, traceback.format_exc())]
    finally:
        try:
            group.close()
        finally:
            hosts.restore()


class Workers:
    """Jobs side by side, each with hosts of its own."""

    def __init__(self, options, scenarios, labs):
        self._options, self._labs = options, labs
        self._waiting, self._lock = iter(scenarios), threading.Lock()
        self.done = queue.Queue()
        self._threads = [threading.Thread(target=self._work, args=(hosts,), daemon=True) for hosts in labs]
        for thread in self._threads:
            thread.start()

    def _work(self, hosts):
        try:
            while not Group.stopping.is_set():
                with self._lock:
                    scenario = next(self._waiting, None)
                if scenario is None:
                    break
                self.done.put((scenario, *run(hosts, self._options.program, scenario, self._options.slack)))
        finally:
            self.done.put(None)

    def results(self):
        """Results until all jobs have ended. A run waits for nothing without a deadline."""
        working = len(self._threads)
        while working:
            result = self.done.get(timeout=300)
            if result is None:
                working -= 1
            else:
                yield result

    def stop(self):
        Group.stopping.set()
        for thread in self._threads:
            thread.join(timeout=120)


def show(record):
    lines = [(line.when, f"{line.when - record.fault_at:+9.3f} rank {line.rank}: {line.word} {line.rest[:1000]}")
             for process in record.processes for line in process.lines if line.word not in ("heartbeat", "id")]
    for _, text in sorted(lines):
        print(text)
    for process in record.processes:
        print(f"process {process.pid} on {record.names[process.host]} with ranks {process.ranks}: status {process.status}")
        for text in process.log:
            print(f"    {text}")


def summary_of(scenario, findings):
    # A crash explains the others.
    first = next((finding for finding in findings if finding.kind == "crash"), findings[0])
    others = "".join(f", {kind}" for kind in sorted({finding.kind for finding in findings} - {first.kind}))
    hit = f"hit {scenario.victims}" if scenario.victims else "no rank hit"
    return f"{first.kind}{others}; {hit}; rank {first.rank}: {first.text}"


def report(options, workers, skipped):
    table, failed, ended, runs = Table(), [], 0, 0
    for scenario, record, findings in workers.results():
        runs += 1
        if assertion := assertion_of_ucx(record):
            ended += 1
            findings = []
            print(f"{scenario.name} {scenario.kind} {scenario.transport} {scenario.phase}: {assertion}", flush=True)
        table.add(scenario, findings, seconds_to_last_error(record))
        if options.verbose or options.replay:
            print(f"{scenario.describe()} on {record.names[0]}", flush=True)
        if options.replay or (options.show and findings):
            show(record)
            for finding in findings:
                print(f"FINDING {finding.kind}, rank {finding.rank}: {finding.text}")
        if findings:
            failed.append((scenario, findings))
            print(f"FAILED {scenario.name} {scenario.kind} {scenario.transport} {scenario.phase}: {summary_of(scenario, findings)}",
                  flush=True)
            if options.verbose:
                for finding in {finding.kind: finding for finding in reversed(findings)}.values():
                    print(f"    {finding.kind}, rank {finding.rank}: {finding.text}", flush=True)
    print(table.text())
    for kind, count in sorted(skipped.items()):
        print(f"skipped: {count} of {kind}")
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as file:
            file.write(table.markdown())
    print(f"{runs} runs, {len(failed)} failed")
    if ended:
        print(f"in {ended} of them an assertion of UCX ended a process (docs/ucx.md); {most_ended_by_ucx(runs)} may do so")
    return 0 if are_tolerated(failed, runs, options.tolerate) and ended <= most_ended_by_ucx(runs) else 1


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="faults_rank")
    parser.add_argument("--runs", type=int, help="in all (" + ", ".join(f"{over} {runs}" for over, runs in RUNS.items()) +
                        "; ten times as many where TREERING_LONG_TESTS=1)")
    parser.add_argument("--seed", help="a number, or several with commas, which share the runs (TREERING_TEST_SEED; else --usual-seed)")
    parser.add_argument("--usual-seed", metavar="SEED", default="1", help="where nothing else is given (1)")
    parser.add_argument("--jobs", type=int, default=4, help="runs side by side: more than the machine can do at once")
    parser.add_argument("--idle", action="store_true", help="one run at a time, with tight deadlines")
    parser.add_argument("--only", metavar="KEY=VALUE,...", help="kind, transport, phase; several values with | between")
    parser.add_argument("--over", choices=OVER, default="own", help="what carries the data: the library's own transports, UCX over TCP, or verbs devices of a guest (own)")
    parser.add_argument("--without", metavar="KIND", default=[], action="append", choices=sorted(KINDS), help="leaves a kind out")
    parser.add_argument("--replay", metavar="SEED:INDEX")
    parser.add_argument("--timeout", type=float, default=4.0, help="TREERING_TIMEOUT of the ranks, seconds")
    parser.add_argument("--slack", type=float, help="seconds beyond it (2; 0.5 with --idle)")
    parser.add_argument("--tolerate", type=float, default=0, metavar="PERCENT",
                        help="of the runs (1 at most, but at least one run) may be late by less than the slack again, name another rank than "
                             "the right one, or fail where the fault is to be survived, as a machine that is loaded by others makes some "
                             "do; all else counts always (tolerance.py), and so does a second run of a kind (0: none may)")
    parser.add_argument("--long-only", action="store_true", help="skipped unless TREERING_LONG_TESTS=1")
    parser.add_argument("--markdown", metavar="FILE", help="writes the table there")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--show", action="store_true", help="all ranks' output of the runs that fail")
    options = parser.parse_args(arguments)
    if options.long_only and os.environ.get("TREERING_LONG_TESTS") != "1":
        print("these runs take minutes; set TREERING_LONG_TESTS=1")
        raise SystemExit(SKIP)
    options.jobs = 1 if options.idle or options.replay or options.over == "verbs" else options.jobs
    if options.runs is None:
        options.runs = RUNS[options.over] * (10 if os.environ.get("TREERING_LONG_TESTS") == "1" else 1)
    if options.slack is None:
        options.slack = 0.5 if options.idle else 2.0
    for name in ("runs", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)}: at least 1")
    given = given_seed()
    options.seed = options.seed or (options.usual_seed if given is None else str(given))
    if not all(seed.isdigit() for seed in options.seed.split(",")):
        parser.error(f"--seed: \"{options.seed}\" is no number, or numbers with commas")
    options.seed = [int(seed) for seed in options.seed.split(",")]
    options.program = os.path.abspath(options.program)
    if not os.access(options.program, os.X_OK):
        parser.error(f"\"{options.program}\" is no program")
    return options


def guest_hosts():
    from guest_hosts import GuestHosts, rdmalab  # QEMU may not be there
    try:
        return GuestHosts()
    except rdmalab.Unavailable as reason:
        raise Unavailable(str(reason)) from reason


def main(arguments):
    options = parse(arguments)
    wanted = parse_filter(options.only)
    clean_environment()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    labs, workers = [], None
    try:
        try:
            labs.append(Hosts() if options.over != "verbs" else guest_hosts())
        except Unavailable as reason:
            print(f"no network namespaces or guest here: {reason}")
            return SKIP
        labs += [Hosts() for _ in range(options.jobs - 1)]
        lacking, skipped = labs[0].lacks(), {}
        for need, reason in lacking.items():
            print(f"no {need}: {reason}")
        began = time.monotonic()
        print(f"seeds {', '.join(map(str, options.seed))}; {options.jobs} jobs, deadline {options.timeout:g} s, slack {options.slack:g} s")
        workers = Workers(options, drawn(options, wanted, lacking, skipped), labs)
        status = report(options, workers, skipped)
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
        return status
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if workers is not None:
            workers.stop()
        for hosts in labs:
            hosts.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
