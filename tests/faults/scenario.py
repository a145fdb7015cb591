# SPDX-License-Identifier: Apache-2.0
"""What is done to a run, and what is expected of it: the tables of kinds and transports, and the draw of a scenario.

A scenario follows from (seed, index) alone; combinations that cannot be are never drawn.
"""

import dataclasses
import random

# What the library is expected to survive. Flip a line when it learns to.
RECONNECTS = True        # a data stream that was reset, shut down or closed comes back
USES_OTHER_FAMILY = True   # data moves to the other IP version when one stops working
MOST_LOSS_SURVIVED = 3    # percent of the packets

ERROR, SURVIVE, EITHER = "error", "survive", "either"
# What the text of an error has to tell.
DEATH, STOP, LEFT, ABORT, DIFFER, NETWORK, LIMIT, NONE = "death stop left abort differ network limit none".split()

# "alltoall" is drawn over others' libraries alone, and "grow" in place of half of "destroy", so that earlier seeds draw what they drew.
PHASES = ("init", "split", "small", "large", "p2p", "shrink", "destroy")
CREATING = ("init", "split", "shrink", "destroy", "grow")
CALLING = ("small", "large", "p2p", "alltoall")
AFTER_INIT = PHASES[1:]


def _ucx(device):
    return (("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", device), ("UCX_LOG_LEVEL", "fatal"))


@dataclasses.dataclass(frozen=True)
class Transport:
    name: str
    variable: str   # TREERING_TRANSPORTS; "": all
    hosts: int
    shapes: tuple   # ranks of each process, in turns over the hosts
    processes: bool = True
    has_network: bool = False
    over: str = "own"            # what carries the data between hosts: the library itself, or ucx
    environment: tuple = ()      # more variables


TRANSPORTS = {transport.name: transport for transport in (
    Transport("in-process", "", 1, ((3,), (4,), (6,)), processes=False),
    Transport("threads", "", 1, ((2, 2), (2, 1, 2), (3, 3))),
    Transport("shared-memory", "in-process,shared-memory", 1, ((1,) * 3, (1,) * 4, (1,) * 8)),
    Transport("cma", "in-process,cma", 1, ((1,) * 3, (1,) * 4, (1,) * 6)),
    Transport("tcp-2x2", "tcp", 2, ((1,) * 4,), has_network=True),
    Transport("tcp-4x1", "", 4, ((1,) * 4,), has_network=True),
    Transport("mixed", "", 3, ((1,) * 5, (1,) * 6, (2, 1, 1, 2), (1,) * 8), has_network=True),
    Transport("ucx-loopback", "ucx", 1, ((1,) * 3, (1,) * 4, (2, 1)), over="ucx", environment=_ucx("lo")),
    Transport("ucx-2x2", "ucx", 2, ((1,) * 4,), has_network=True, over="ucx", environment=_ucx("eth0")),
    Transport("ucx-4x1", "ucx", 4, ((1,) * 4,), has_network=True, over="ucx", environment=_ucx("eth0")),
    Transport("ucx-mixed", "shared-memory,ucx", 3, ((1,) * 5, (2, 1, 1, 2)), has_network=True, over="ucx", environment=_ucx("eth0")),
    # In a guest with soft-RoCE, whose processors are slow. The time after which a card gives up is 1.9 s.
    Transport("verbs-3x1", "verbs", 3, ((1,) * 3,), has_network=True, over="verbs", environment=(("TREERING_VERBS_TIMEOUT", "16"),)),
    Transport("verbs-mixed", "shared-memory,verbs", 2, ((1,) * 4,), has_network=True, over="verbs",
              environment=(("TREERING_VERBS_TIMEOUT", "16"),)),
    Transport("rc-3x1", "ucx", 3, ((1,) * 3,), has_network=True, over="verbs",
              environment=(("UCX_TLS", "rc_verbs,ud_verbs:aux"), ("UCX_NET_DEVICES", "rxe{host}:1"), ("UCX_LOG_LEVEL", "fatal"),
                           ("UCX_UD_VERBS_ETH_DGID_CHECK", "n"))),
)}


def _named(over, is_wanted=lambda transport: True):
    return tuple(name for name, transport in TRANSPORTS.items() if transport.over == over and is_wanted(transport))


OVER = ("own", "ucx", "verbs")
ALL = _named("own")
PROCESSES = _named("own", lambda transport: transport.processes)
OVER_TCP = _named("own", lambda transport: transport.has_network)


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    outcome: str
    cause: str
    transports: tuple
    phases: tuple = PHASES
    victims: str = "process"  # process, two, first, rank, host, half, relay, none: what is hit
    needs: tuple = ()         # of the machine
    seconds: tuple = (0, 0)   # how long it lasts; 0: for ever


KINDS = {kind.name: kind for kind in (
    Kind("kill", ERROR, DEATH, PROCESSES),
    Kind("kill-two", ERROR, DEATH, PROCESSES, victims="two"),
    Kind("kill-id", ERROR, DEATH, PROCESSES, victims="first"),
    Kind("kill-relay", SURVIVE, NONE, ALL, AFTER_INIT, victims="relay"),
    Kind("exit", ERROR, DEATH, PROCESSES),
    Kind("_exit", ERROR, DEATH, PROCESSES),
    Kind("stop", ERROR, STOP, PROCESSES),
    Kind("stop-short", SURVIVE, NONE, PROCESSES, seconds=(0.3, 2.0)),
    Kind("leave", ERROR, LEFT, ALL, AFTER_INIT, victims="rank"),
    Kind("abort", ERROR, ABORT, ALL, AFTER_INIT, victims="rank"),
    Kind("revoke", ERROR, ABORT, ALL, AFTER_INIT, victims="rank"),
    Kind("differ", ERROR, DIFFER, ALL, AFTER_INIT, victims="rank"),
    Kind("no-descriptors", EITHER, LIMIT, ALL),
    Kind("no-memory", EITHER, LIMIT, ALL),
    Kind("shm-full", SURVIVE, NONE, ALL, victims="none"),
    Kind("link-cut", ERROR, NETWORK, OVER_TCP, victims="host"),
    Kind("link-down", ERROR, NETWORK, OVER_TCP, victims="host"),
    Kind("outage", SURVIVE, NETWORK, OVER_TCP, victims="host", seconds=(1.0, 2.0)),
    Kind("long-outage", EITHER, NETWORK, OVER_TCP, victims="host", seconds=(2.5, 10.0)),
    Kind("partition", ERROR, NETWORK, OVER_TCP, victims="half"),
    Kind("drop-in", ERROR, NETWORK, OVER_TCP, victims="host", needs=("nft",)),
    Kind("drop-out", ERROR, NETWORK, OVER_TCP, victims="host", needs=("nft",)),
    Kind("drop-ipv4", SURVIVE if USES_OTHER_FAMILY else EITHER, NETWORK, OVER_TCP, victims="host", needs=("nft",)),
    Kind("drop-ipv6", SURVIVE if USES_OTHER_FAMILY else EITHER, NETWORK, OVER_TCP, victims="host", needs=("nft",)),
    Kind("reset", SURVIVE if RECONNECTS else EITHER, NETWORK, OVER_TCP, victims="host", needs=("ss -K",)),
    Kind("reject", SURVIVE if RECONNECTS else EITHER, NETWORK, OVER_TCP, victims="host", needs=("nft",), seconds=(0.2, 0.3)),
    Kind("reset-sockets", SURVIVE if RECONNECTS else EITHER, NETWORK, OVER_TCP),
    Kind("shutdown-sockets", SURVIVE if RECONNECTS else EITHER, NETWORK, OVER_TCP),
    Kind("close-sockets", EITHER, NETWORK, OVER_TCP),
    Kind("tiny-buffers", SURVIVE, NONE, OVER_TCP, victims="none"),
    Kind("loss", SURVIVE, NETWORK, OVER_TCP, victims="none", needs=("nft",)),
    # Over networks of others alone: a child that was forked outlives the process.
    Kind("kill-parent", ERROR, DEATH, ()),
    # Faults in the network of verbs devices alone, in a guest.
    Kind("port-down", ERROR, NETWORK, (), victims="host"),
    Kind("port-outage", SURVIVE, NETWORK, (), victims="host", seconds=(0.1, 0.6)),
    Kind("data-loss", SURVIVE, NETWORK, (), victims="none"),
)}
OF_GUESTS = ("kill", "kill-parent", "exit", "stop", "stop-short", "leave", "revoke", "port-down", "port-outage", "data-loss")
# UCX ends a process that runs out of memory or descriptors, or whose sockets are closed by another than itself.
NOT_OVER_UCX = {"no-memory", "no-descriptors", "close-sockets"}
# UCX 1.13 ends a process whose connection breaks at some moments while it is opened: an assertion of its own (docs/ucx.md).
NOT_WHILE_UCX_CONNECTS = {"reject", "reset", "reset-sockets", "shutdown-sockets"}
# A link over UCX is not opened again: what a fault does to its connections may end the communicator.
ENDS_LINKS_OF_UCX = {"reset", "reset-sockets", "shutdown-sockets", "reject", "drop-ipv4"}
AT_START = ("tiny-buffers", "shm-full")  # before the ranks begin
MOVES = ("drop-ipv4", "drop-ipv6")
OF_CONNECTIONS = {"reset": "reset", "reset-sockets": "reset", "shutdown-sockets": "shutdown"}   # what the victims say that they did


@dataclasses.dataclass
class Scenario:
    seed: int
    index: int
    kind: str
    transport: str
    phase: str
    processes: list          # [(host, [ranks])]
    victims: list            # ranks that are hit
    victim_hosts: list       # hosts that are hit
    delay: float             # seconds from the phase's begin to the fault
    seconds: float           # how long the fault lasts; 0: for ever
    mbit: int                # of the links; 0: not limited
    loss: int                # percent
    least: int
    most: int                # bytes of a call
    relay: bool
    timeout: float = 4.0     # seconds: TREERING_TIMEOUT
    differs: str = ""        # what the victim's call has otherwise: see _other()

    @property
    def name(self):
        return f"{self.seed}:{self.index}"

    @property
    def ranks(self):
        return sum(len(ranks) for _, ranks in self.processes)

    @property
    def hosts(self):
        return len({host for host, _ in self.processes})

    @property
    def over(self):
        return TRANSPORTS[self.transport].over

    @property
    def cause(self):
        return KINDS[self.kind].cause

    @property
    def gone(self):
        """Ranks that are not asked for an outcome."""
        return self.victims if self.cause in (DEATH, STOP, LEFT) or self.kind == "abort" else []

    @property
    def beside_shrink(self):
        """One of the calls that differ is a shrink. It can be made at any time and carries no number. So each rank waits for the other."""
        return self.cause == DIFFER and "shrink" in (self.phase, self.differs)

    @property
    def excluded(self):
        """Whom the survivors leave out when they go on."""
        return self.victims if self.phase == "shrink" and self.cause in (DEATH, STOP) else []

    @property
    def outcome(self):
        if self.phase in CREATING and self.kind.startswith("port-"):
            return EITHER  # a port that is down is none for a communicator that is made meanwhile
        if self.over == "ucx" and self.kind in ENDS_LINKS_OF_UCX:
            return EITHER
        # Pairs of ranks try to reach one another for half of the deadline; the kernel opens a connection again after 1 and 3 s.
        if self.over != "own" and self.phase in CREATING and self.kind in ("outage", "stop-short") and self.seconds > self.timeout / 4:
            return EITHER
        if self.kind == "loss":
            return SURVIVE if self.loss <= MOST_LOSS_SURVIVED else EITHER
        if self.kind == "stop-short" or self.kind == "outage":
            return SURVIVE if self.seconds <= self.timeout / 2 else EITHER
        if self.kind in MOVES and self.phase in CREATING and self.over != "own":
            return EITHER  # what connects the pairs has no other way
        if self.kind == "long-outage" and self.seconds > 2 * self.timeout:
            return ERROR
        return KINDS[self.kind].outcome

    def host_of(self, rank):
        return next(host for host, ranks in self.processes if rank in ranks)

    def describe(self):
        layout = " ".join(f"{host}:{'+'.join(map(str, ranks))}" for host, ranks in self.processes)
        hit = f"ranks {self.victims}" if self.victims else "no rank"
        return (f"{self.name} kind={self.kind} transport={self.transport} phase={self.phase} host:ranks {layout} hit {hit} "
                f"delay={self.delay:.3f} seconds={self.seconds:.2f} mbit={self.mbit} loss={self.loss} "
                f"bytes={self.least}..{self.most} timeout={self.timeout:g}" + f" differs={self.differs}" * bool(self.differs)
                + f" expect={self.outcome}")


def _deadlines(kind, phase, over):
    """How many times as long the deadline is: what is told at once does not wait for it, and the moves to another network, one after the
    other in a creation, take longer. docs/failures.md promises them from 10 and from 20 s on."""
    if over != "own":
        return 1
    if kind.name in MOVES:
        return 5 if phase in CREATING else 2.5
    return 2.5 if kind.cause == DEATH else 1


def _sizes(generator, kind, transport, phase, ranks, over):
    """Least and most bytes of a call, and Mbit/s."""
    if kind == "tiny-buffers":
        mbit = generator.choice((5, 50))
        return (8, 4096, mbit) if phase != "large" else (32 << 10, 12000 * mbit, mbit)
    if over == "verbs":
        return (128 << 10, 512 << 10, 0) if phase == "large" else (8, 4096, 0) if generator.random() < 0.5 else (8, 64 << 10, 0)
    if phase == "large":
        most = 32 << 20 if ranks <= 4 and transport != "tcp-2x2" else 16 << 20
        return (4 << 20, most, 0) if kind != "loss" else (1 << 20, 4 << 20, 0)
    return (8, 4096, 0) if phase not in ("p2p", "alltoall") or generator.random() < 0.5 else (8, 1 << 20, 0)


def _victims(generator, kind, processes):
    """Ranks and hosts that are hit."""
    hosts = sorted({host for host, _ in processes})
    if kind.victims == "first":
        return list(processes[0][1]), []
    if kind.victims == "process":
        return list(generator.choice(processes)[1]), []
    if kind.victims == "two":
        return sorted(rank for _, ranks in generator.sample(processes, min(2, len(processes) - 1)) for rank in ranks), []
    if kind.victims == "rank":
        return [generator.choice([rank for _, ranks in processes for rank in ranks])], []
    if kind.victims in ("host", "half"):
        hit = generator.sample(hosts, 1 if kind.victims == "host" else max(1, len(hosts) // 2))
        return sorted(rank for host, ranks in processes if host in hit for rank in ranks), sorted(hit)
    return [], []


def _other(generator, kind, phase):
    """How a call differs: in an argument, or it is another collective. A creation is replaced by a collective or by a shrink."""
    if kind != "differ":
        return ""
    others = {"p2p": ("count",), "alltoall": ("count", "type"), "shrink": ("call",), "split": ("call", "shrink"), "destroy": ("call", "shrink")}
    return generator.choice(others.get(phase, ("count", "collective", "root", "type", "operation")))


def _kinds(over):
    if over == "verbs":
        return OF_GUESTS
    if over == "ucx":
        return sorted(name for name, kind in KINDS.items() if kind.transports and name not in NOT_OVER_UCX) + ["kill-parent"]
    return sorted(name for name, kind in KINDS.items() if kind.transports)


def _possible(kind, over):
    """Transports and phases of a kind."""
    if over == "own":
        return kind.transports, kind.phases
    transports = _named(over, lambda transport: transport.has_network or kind.transports != OVER_TCP)
    phases = kind.phases + ("alltoall",) * ("small" in kind.phases)
    if over == "ucx" and kind.name in NOT_WHILE_UCX_CONNECTS:
        phases = tuple(phase for phase in phases if phase not in CREATING)
    return transports, phases


def draw(seed, index, timeout=4.0, over="own"):
    generator = random.Random(f"{seed}:{index}")
    kind = KINDS[generator.choice(_kinds(over))]
    transports, phases = _possible(kind, over)
    transport = TRANSPORTS[generator.choice(transports)]
    phase = generator.choice(phases)
    shape = generator.choice(transport.shapes)
    processes, first = [], 0
    for number, count in enumerate(shape):
        processes.append((number % transport.hosts, list(range(first, first + count))))
        first += count
    victims, victim_hosts = _victims(generator, kind, processes)
    least, most, mbit = _sizes(generator, kind.name, transport.name, phase, first, over)
    seconds = generator.uniform(*kind.seconds) * (1 if kind.name == "reject" or over == "verbs" else timeout / 4)
    relay = kind.victims == "relay" or (kind.victims != "first" and phase != "init" and generator.random() < 0.1)
    delay, loss = generator.uniform(0.02, 0.4), generator.choice((1, 2, 3, 5, 10, 20)) if kind.name == "loss" else 0
    if phase == "destroy" and over == "own" and generator.random() < 0.5 and kind.name not in ("abort", "differ"):
        phase = "grow"
    differs = _other(generator, kind.name, phase)
    return Scenario(seed, index, kind.name, transport.name, phase, processes, victims, victim_hosts,
                    delay=delay, seconds=seconds, mbit=mbit, loss=loss, least=least, most=most, relay=relay, differs=differs,
                    timeout=timeout * _deadlines(kind, phase, over))
