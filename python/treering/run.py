# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a program, on this machine or on several hosts.

    python -m treering.run -n 4 program.py [arguments]
    python -m treering.run --hosts a:2,b:2 program.py [arguments]

When a rank fails the others are ended a second later, and the exit status is that of the first failure: its own, or 128 + the number
of the signal that ended it. Every rank gets TREERING_RANK, TREERING_RANKS, and the job's secret as the first line of its
standard input, which has nothing else.

On each host one process, the node, starts the ranks of that host and stays:

    this process ---- id, on standard input ---> node (one for each host) ---> ranks
                 <--- exit status, end ---------      \\-- ends its ranks when its standard input ends
"""
import argparse
import ctypes
import functools
import os
import select
import shlex
import signal
import subprocess
import sys
import time

from ._notice import BECAUSE_OF_ANOTHER
from ._notice import VARIABLE as NOTICE

# Seconds in which the other ranks of a failed one may say what they see of it, and end by themselves, before they are asked to.
TIME_TO_TELL = 1.0
# Seconds between asking ranks to end and killing them.
GRACE = 3.0
SSH = "ssh -o BatchMode=yes {host} {command}"
# Not given to other hosts: each has its own; or the launcher sets them; or they are secret, and every user of a machine
# sees command lines. The job's id, which has its secret, goes to the nodes' standard inputs.
NOT_FOR_HOSTS = {"TREERING_HOSTID", "TREERING_SWITCHES", "TREERING_ID", "TREERING_RANK", "TREERING_RANKS", "TREERING_SECRET"}
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)  # loaded before any fork


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m treering.run", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__)
    parser.add_argument("-n", "-np", "--ranks", type=int, help="ranks on this machine")
    parser.add_argument("--hosts", help="hosts with their ranks: a:2,b:2")
    parser.add_argument("--launcher", default=SSH,
                        help="command that runs {command}, one line for a shell, on {host}; default: %(default)s")
    parser.add_argument("-m", dest="module", action="store_true", help="program is a module, as with python -m")
    parser.add_argument("--python", default=sys.executable, help="the Python of the ranks; default: %(default)s")
    parser.add_argument("--node", help=argparse.SUPPRESS)  # FIRST:COUNT:RANKS, for a node
    parser.add_argument("program", help="a Python program, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    options = parser.parse_args(arguments)
    if sum(option is not None for option in (options.ranks, options.hosts, options.node)) != 1:
        parser.error("give either -n or --hosts")
    if options.ranks is not None and options.ranks < 1:
        parser.error(f"-n is {options.ranks}; 1 or more ranks are wanted")
    if options.hosts is not None:
        try:
            shlex.split(options.launcher)
        except ValueError as error:
            parser.error(f"--launcher is '{options.launcher}': {error}")
        options.hosts = [parse_host(text, parser) for text in options.hosts.split(",")]
    return options


def parse_host(text, parser):
    host, colon, count = text.rpartition(":")
    if not colon:
        host, count = text, "1"
    if not host or not count.isdigit() or int(count) < 1:
        parser.error(f"--hosts has '{text}'; HOST:RANKS is wanted, as in a:2")
    return host, int(count)


def status_of(returncode):
    return 128 - returncode if returncode < 0 else returncode


class Child:
    """A process, with the pipe over which a rank says that it begins to end."""

    def __init__(self, name, process, notices):
        self.name, self.process, self.notices = name, process, notices
        self.pidfd = os.pidfd_open(process.pid)
        self.because_of_another = False
        self.status = None


class Children:
    """Processes that end together: the first that fails ends the others, and its status is that of all.

    Whose failure was first: a rank that ends closes its communicators, of which others fail, perhaps before it is gone.
    So it gives notice before that. epoll tells of notices and of deaths in the order in which they came. A rank that ends
    by an uncaught RemoteError says so, and counts only where no other one has failed.
    """

    def __init__(self, what):
        self.what = what
        self.poll = select.epoll()
        self.handlers = {}
        self.running = set()
        self.leaving = []  # in the order in which they began to end
        self.interrupted = None
        self.has_told = False
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self.watch(reader, self.take_signals)

    def watch(self, descriptor, handler):
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor):
        self.poll.unregister(descriptor)
        del self.handlers[descriptor]

    def take_signals(self, descriptor):
        self.interrupted = os.read(descriptor, 4096)[0]

    def start(self, name, command, environment, first_line, gives_notice=False, **more):
        notices, writer = os.pipe2(os.O_CLOEXEC)
        if gives_notice:
            environment = {**environment, NOTICE: f"{writer}:{os.getpid()}"}
            more["pass_fds"] = [writer]
        try:
            # A session of its own: what the terminal sends reaches this process alone, which hands it on. Without a
            # buffer of the pipe, which would be written again when it is closed.
            process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, bufsize=0, start_new_session=True,
                                       **more)
        except OSError:
            os.close(notices)
            raise
        finally:
            os.close(writer)
        try:
            process.stdin.write(first_line)
        except BrokenPipeError:
            pass  # it has ended, which the poll tells
        child = Child(name, process, notices)
        self.running.add(child)
        self.watch(child.pidfd, lambda _: self.bury(child))
        if gives_notice:
            self.watch(notices, lambda _: self.take_notice(child))
        return child

    def take_notice(self, child):
        said = os.read(child.notices, 1)
        self.unwatch(child.notices)
        if said:
            child.because_of_another = said == BECAUSE_OF_ANOTHER
            self.leaving.append(child)

    def bury(self, child):
        self.unwatch(child.pidfd)
        os.close(child.pidfd)
        child.status = status_of(child.process.wait())
        child.process.stdin.close()
        self.running.discard(child)
        if child not in self.leaving:
            self.leaving.append(child)
        first = self.first_failure()
        # One that began to end before it may be gone after it, and one that failed because of another before that one.
        if first is not None and not first.because_of_another and None not in (
                other.status for other in self.leaving[:self.leaving.index(first)]):
            self.tell_of(first)

    def tell_of(self, child):
        """Once."""
        if self.interrupted is None and not self.has_told:
            self.has_told = True
            by = f"by signal {child.status - 128}" if child.process.returncode < 0 else f"with status {child.status}"
            print(f"treering.run: {self.what} {child.name} ended {by}; ending the others", file=sys.stderr, flush=True)

    def first_failure(self):
        failed = [child for child in self.leaving if child.status]
        by_themselves = [child for child in failed if not child.because_of_another]
        return (by_themselves or failed)[0] if failed else None

    def send(self, number, to_leaving=False):
        """Those that end by themselves are let do it, so that their status stays their own."""
        for child in self.running:
            if to_leaving or child not in self.leaving:
                child.process.send_signal(number)

    def wait(self, hold_back=0.0, time_to_tell=TIME_TO_TELL):
        """Until all have ended. Failures because of others, which this process does not see, are held back for a while."""
        failed_at = asked_at = None
        killed = False
        while self.running:
            until = None
            if asked_at is not None:
                until = asked_at + GRACE
            elif failed_at is not None:
                until = failed_at + time_to_tell
            self.take_events(None if until is None or killed else max(0.0, until - time.monotonic()))
            now = time.monotonic()
            if failed_at is None and self.first_failure() is not None:
                failed_at = now
            if asked_at is None:
                if self.interrupted is not None or (failed_at is not None and now - failed_at >= time_to_tell):
                    asked_at = now
                    self.send(self.interrupted or signal.SIGTERM)
            elif now - asked_at >= GRACE and not killed:
                killed = True
                self.send(signal.SIGKILL, to_leaving=True)
        first = self.first_failure()
        if self.interrupted is None and first is not None and first.because_of_another:
            until = time.monotonic() + hold_back
            while self.interrupted is None and time.monotonic() < until:
                self.take_events(until - time.monotonic())
        if self.interrupted is not None:
            return 128 + self.interrupted
        if first is None:
            return 0
        self.tell_of(first)
        return first.status

    def take_events(self, timeout):
        for descriptor, _ in self.poll.poll(timeout):
            if descriptor in self.handlers:
                self.handlers[descriptor](descriptor)


def command_of(options):
    return [options.python, *(["-m"] if options.module else []), options.program, *options.arguments]


def end_with(parent):
    """In a child: it is told to end when the thread that started it does, however that ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.set_wakeup_fd(-1)
    if os.getppid() != parent:  # it had ended before the request
        os._exit(status_of(-signal.SIGTERM))


def report_start(children, what, error):
    """Reports a process that cannot be started, and ends the others."""
    print(f"treering.run: {what} cannot be started: {error.strerror or error}", file=sys.stderr)
    children.send(signal.SIGKILL, to_leaving=True)
    return 127


def run_ranks(options, first, count, ranks, line, node=False):
    """Ranks first to first + count - 1 on this machine."""
    children = Children("rank")

    def end_with_launcher(descriptor):
        if not os.read(descriptor, 4096):
            children.unwatch(descriptor)
            children.interrupted = children.interrupted or signal.SIGTERM

    for rank in range(first, first + count):
        environment = {**os.environ, "TREERING_RANK": str(rank), "TREERING_RANKS": str(ranks), "TREERING_ID": "-"}
        try:
            child = children.start(rank, command_of(options), environment, line, gives_notice=True,
                                   preexec_fn=functools.partial(end_with, os.getpid()))
        except OSError as error:
            return report_start(children, options.python, error)
        child.process.stdin.close()
    if node:
        children.watch(0, end_with_launcher)
    return children.wait(hold_back=2 * GRACE if node else 0.0)


def run_hosts(options, line):
    """A node on each host, which starts its ranks."""
    children = Children("host")
    ranks = sum(count for _, count in options.hosts)
    variables = [f"{name}={value}" for name, value in os.environ.items()
                 if name.startswith("TREERING_") and name not in NOT_FOR_HOSTS]
    variables += [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []
    first = 0
    for host, count in options.hosts:
        node = [options.python, "-m", "treering.run", "--node", f"{first}:{count}:{ranks}", "--python", options.python,
                *(["-m"] if options.module else []), options.program, *options.arguments]
        shell_line = f"cd {shlex.quote(os.getcwd())} && exec env {shlex.join([*variables, *node])}"
        command = launcher_command(options.launcher, host, shell_line)
        try:
            children.start(host, command, dict(os.environ), line)
        except OSError as error:
            return report_start(children, command[0], error)
        first += count
    return children.wait(time_to_tell=0.0)  # a node gives its ranks that time


def launcher_command(launcher, host, shell_line):
    words = shlex.split(launcher)
    if not any("{command}" in word for word in words):
        words += ["sh", "-c", "{command}"]
    return [word.replace("{host}", host).replace("{command}", shell_line) for word in words]


def main(arguments=None):
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.node is not None:
        first, count, ranks = (int(part) for part in options.node.split(":"))
        return run_ranks(options, first, count, ranks, read_line(0), node=True)
    from . import Error, unique_id

    # This process made the id and lives until all ranks have ended: they meet here.
    try:
        line = unique_id().hex().encode() + b"\n"
    except Error as error:
        sys.exit(f"treering.run: {error}")
    if options.hosts is not None:
        return run_hosts(options, line)
    return run_ranks(options, 0, options.ranks, options.ranks, line)


def read_line(descriptor):
    """Up to the end of the line, and nothing of what follows."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            sys.exit("treering.run: standard input ended before the id came")
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
