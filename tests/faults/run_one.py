# SPDX-License-Identifier: Apache-2.0
"""One run: ranks in a phase, a fault, and what became of all: a Record for the judge."""

import dataclasses
import os
import signal
import time

from scenario import AT_START, DEATH, ERROR, TRANSPORTS

START = 60   # seconds until all ranks are in the phase
CARRIER = 1.0  # seconds for which a device passes nothing after it has its carrier back, at most: the kernel looks once a second
IDS = 80     # communicators of the phase `init`


@dataclasses.dataclass
class Record:
    scenario: object
    names: list                       # of the hosts, by number
    processes: list                   # group.Process
    fault_at: float = 0.0             # seconds of the monotonic clock; 0: there was none
    stop_at: float = 0.0              # when the ranks were told to stop; 0: they were not
    passes_again_at: float = 0.0      # from then on the network passes everything again; 0: it did not, or the fault was another
    over_at: float = 0.0              # when the driver stopped waiting
    reset: int = 0                    # connections that the driver reset
    left_in_memory: list = dataclasses.field(default_factory=list)   # names in /dev/shm
    trouble: str = ""                 # of the driver: nothing was tried

    def lines(self, rank):
        return [line for process in self.processes for line in process.lines if line.rank == rank and rank in process.ranks]

    def process_of(self, rank):
        return next(process for process in self.processes if rank in process.ranks)


class Run:
    def __init__(self, hosts, group, scenario, slack):
        self._hosts, self._group, self._scenario, self._slack = hosts, group, scenario, slack
        self.record = Record(scenario, hosts.lab.names, group.processes)
        # What is left is looked at once all have destroyed their communicators: until then their processes are in its control tree.
        # A process that has died keeps none there; but the rank that was to be added by the others waits until its deadline.
        waits_for_all = TRANSPORTS[scenario.transport].has_network and not scenario.gone
        self._waits = waits_for_all or (scenario.phase == "grow" and scenario.cause == DEATH)

    def go(self):
        scenario = self._scenario
        self._at_start()
        if not self._start():
            self.record.trouble = "the ranks did not get into the phase"
        else:
            self._group.sleep(scenario.delay)
            self.record.fault_at = time.monotonic()
            self._inject()
            self._await_outcome()
        self.record.over_at = time.monotonic()
        self._hosts.restore()
        self._end()
        return self.record

    def _at_start(self):
        if self._scenario.kind == "tiny-buffers":
            self._hosts.shrink_buffers(self._scenario.mbit)
        if self._scenario.kind == "shm-full":
            self._hosts.fill_shared_memory()

    def _start(self):
        scenario = self._scenario
        environment = {"TREERING_TIMEOUT": f"{scenario.timeout:g}", **dict(TRANSPORTS[scenario.transport].environment)}
        if variable := TRANSPORTS[scenario.transport].variable:
            environment["TREERING_TRANSPORTS"] = variable
        arguments = [f"ranks={scenario.ranks}", f"phase={scenario.phase}", f"seed={scenario.index}",
                     f"least={scenario.least}", f"most={scenario.most}", f"wait={int(self._waits)}",
                     f"ids={IDS if scenario.phase == 'init' else 1}"]
        if scenario.excluded:
            arguments.append("excluded=" + ",".join(map(str, scenario.excluded)))
        if scenario.differs:
            arguments.append(f"differs={scenario.differs}")
        makers = []
        if scenario.relay:
            makers.append(self._group.start(0, [], [*arguments, "own=99", "id=make", "phase=relay"], environment))
        for host, ranks in scenario.processes:
            own = "own=" + ",".join(map(str, ranks))
            self._group.start(host, ranks, [*arguments, own, "id=read" if makers else "id=make"], environment)
            makers = makers or [self._group.processes[0]]
        deadline = time.monotonic() + START
        if not self._group.wait(lambda: makers[0].has("id") or self._all_ended(), deadline) or not makers[0].has("id"):
            return False
        ids = next(line.rest for line in makers[0].lines if line.word == "id")
        self._group.tell([process for process in self._group.processes if process is not makers[0]], "ids " + ids)
        self._group.wait(lambda: self._all_in() or self._any_error() or self._all_ended(), deadline)
        return self._all_in()

    def _all_in(self):
        return all(self._group.process_of(rank).has("in", rank) for rank in range(self._scenario.ranks))

    def _any_error(self):
        return any(process.has("error") for process in self._group.processes)

    def _all_ended(self):
        return all(process.status is not None for process in self._group.processes)

    def _victims(self):
        return [process for process in self._group.processes if set(process.ranks) & set(self._scenario.victims)]

    def _inject(self):
        scenario, hosts, group = self._scenario, self._hosts, self._group
        victim_ranks, victim_hosts = scenario.victims, scenario.victim_hosts
        own = {"exit": "exit", "_exit": "_exit", "no-descriptors": "no-descriptors", "no-memory": "no-memory",
               "close-sockets": "close-sockets", "shutdown-sockets": "shutdown-sockets", "reset-sockets": "reset-sockets"}
        kind = scenario.kind
        if kind == "kill-parent":
            group.tell(self._victims(), "fork")
            group.wait(lambda: all(process.has("did") for process in self._victims()), time.monotonic() + 5)
            self.record.fault_at = time.monotonic()
        if kind in ("kill", "kill-two", "kill-id", "kill-parent"):
            for process in self._victims():
                group.kill(process)
        elif kind == "kill-relay":
            group.kill(group.processes[0])
        elif kind in ("stop", "stop-short"):
            for process in self._victims():
                group.kill(process, signal.SIGSTOP)
        elif kind in ("leave", "abort", "revoke", "differ"):
            group.tell(self._victims(), f"{kind} {victim_ranks[0]}")
        elif kind in own:
            group.tell(self._victims(), own[kind])
        elif self._takes_carrier():
            hosts.take_down(victim_hosts)
        elif kind in ("link-cut", "outage", "long-outage"):
            hosts.cut(victim_hosts)
        elif kind == "partition":
            hosts.part(victim_hosts)
        elif kind in ("drop-in", "drop-out", "reject"):
            getattr(hosts, kind.replace("-", "_"))(victim_hosts[0])
        elif kind == "reset":
            self.record.reset = hosts.reset(victim_hosts[0])
        elif kind in ("drop-ipv4", "drop-ipv6"):
            hosts.drop_family(victim_hosts[0], kind[5:])
        elif kind in ("port-down", "port-outage"):
            hosts.take_data_down(victim_hosts)
        elif kind == "data-loss":
            hosts.lose_data(1)
        elif kind == "loss":
            hosts.lose(scenario.loss)
        elif kind not in AT_START:
            raise ValueError(f"no such kind of fault: {kind}")

    def _await_outcome(self):
        scenario, group = self._scenario, self._group
        late = scenario.timeout + self._slack + 4
        if scenario.outcome == ERROR:
            group.wait(self._is_over, self.record.fault_at + 2 * late)
            return
        if scenario.seconds:
            group.wait(self._is_over, self.record.fault_at + self._seconds_to_undo())
            self._hosts.restore()
            self.record.passes_again_at = time.monotonic() + (CARRIER if self._takes_carrier() else 0)
            if scenario.kind == "stop-short":
                for process in self._victims():
                    group.kill(process, signal.SIGCONT)
        group.wait(self._is_over, time.monotonic() + 0.8)
        self.record.stop_at = time.monotonic()
        group.tell(group.processes, "stop")
        # A call that waits may make progress for a while: links of 5 Mbit/s.
        group.wait(self._is_over, self.record.stop_at + 2 * late)

    def _seconds_to_undo(self):
        """So that an outage that is to be survived is no longer than the scenario says."""
        scenario = self._scenario
        return max(0.1, scenario.seconds - CARRIER) if scenario.kind == "outage" and self._takes_carrier() else scenario.seconds

    def _takes_carrier(self):
        scenario = self._scenario
        return scenario.kind == "link-down" or (scenario.kind in ("outage", "long-outage") and scenario.index % 2)

    def _is_over(self):
        word = "destroyed" if self._waits else "end"
        for process in self._group.processes:
            if not process.ranks or set(process.ranks) <= set(self._scenario.gone) or process.status is not None:
                continue
            if word == "end" and not process.has("end"):
                return False
            if word == "destroyed" and not all(self._has_left(process, rank) for rank in process.ranks):
                return False
        return True

    @staticmethod
    def _has_left(process, rank):
        return any(line.word == "destroyed" and line.rank == rank for line in process.lines)

    def _end(self):
        group, scenario = self._group, self._scenario
        if scenario.kind == "stop":
            for process in self._victims():
                group.kill(process)
        group.tell(group.processes, "finish")
        # The end of a process after a failure may take 3 s, and what is left is looked at for 8 s.
        group.wait(self._all_ended, time.monotonic() + 13)
        group.drain()
        if scenario.kind != "shm-full":
            self.record.left_in_memory = self._hosts.names_in_shared_memory()


def clean_environment():
    for key in list(os.environ):
        if key.startswith(("TREERING_", "PMI", "OMPI", "SLURM")) and key not in ("TREERING_LONG_TESTS", "TREERING_DEBUG"):
            del os.environ[key]
