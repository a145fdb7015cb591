# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a program, on this machine or on several hosts.

    python -m treering.run -n 4 program.py [arguments]
    python -m treering.run --hosts a:2,b:2 program.py [arguments]

When a rank fails the others are ended, and the exit status is that of the first failure: its own, or 128 + the number
of the signal that ended it. Every rank gets TREERING_RANK, TREERING_RANKS, and the job's secret as the first line of its
standard input, which has nothing else.

On each host one process, the node, starts the ranks of that host and stays:

    this process ---- id, on standard input ---> node (one for each host) ---> ranks
                 <--- exit status, end ---------      \\-- ends its ranks when its standard input ends
"""
import argparse
import os
import select
import shlex
import signal
import subprocess
import sys
import time

# Between asking ranks to end and killing them. Other ranks of a failed one end by themselves meanwhile.
GRACE = 3.0
SSH = "ssh -o BatchMode=yes {host} {command}"


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m treering.run", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__)
    parser.add_argument("-n", "--ranks", type=int, help="ranks on this machine")
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


class Children:
    """Processes that end together: the first that fails ends the others, and its status is that of all."""

    def __init__(self, what):
        self.what = what
        self.running = {}
        self.first_failure = 0
        self.interrupted = None

    def start(self, name, command, environment, first_line, **more):
        child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, **more)
        try:
            child.stdin.write(first_line)
            child.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which wait() sees
        self.running[child.pid] = (name, child)
        return child

    def collect(self):
        """Takes down who has ended."""
        for pid, (name, child) in list(self.running.items()):
            if child.poll() is None:
                continue
            del self.running[pid]
            child.stdin.close()
            status = status_of(child.returncode)
            if status != 0 and self.first_failure == 0:
                self.first_failure = status
                if self.interrupted is None:
                    by = f"by signal {-child.returncode}" if child.returncode < 0 else f"with status {status}"
                    print(f"treering.run: {self.what} {name} ended {by}; ending the others", file=sys.stderr, flush=True)

    def send(self, number):
        for _, child in self.running.values():
            if child.poll() is None:
                child.send_signal(number)

    def wait_for_all(self, wake, on_wake=None):
        """Until all have ended. `wake` is readable when a child has ended or a signal has come."""
        asked_at = None
        killed = False
        while self.running:
            timeout = None if asked_at is None or killed else max(0.0, asked_at + GRACE - time.monotonic())
            readable, _, _ = select.select(wake, [], [], timeout)
            for descriptor in readable:
                if on_wake is not None:
                    on_wake(descriptor, self)
            self.collect()
            if self.first_failure == 0 and self.interrupted is None:
                continue
            now = time.monotonic()
            if asked_at is None:
                asked_at = now
                # Ctrl-C of a terminal reaches all of its processes by itself.
                self.send(self.interrupted or signal.SIGTERM)
            elif now - asked_at >= GRACE and not killed:
                killed = True
                self.send(signal.SIGKILL)
        if self.interrupted is not None:
            return 128 + self.interrupted
        return self.first_failure


def signals_as_descriptor():
    """A descriptor that has a byte for each signal that comes."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def take_signals(descriptor, children):
    """What came over signals_as_descriptor()."""
    for number in os.read(descriptor, 4096):
        if number != signal.SIGCHLD:
            children.interrupted = number


def command_of(options):
    return [options.python, *(["-m"] if options.module else []), options.program, *options.arguments]


def end_with_parent():
    """In a child: it is told to end when the thread that started it does, however that ends."""
    import ctypes

    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.set_wakeup_fd(-1)


def run_ranks(options, first, count, ranks, line, inputs=()):
    """Ranks first to first + count - 1 on this machine."""
    wake = signals_as_descriptor()
    children = Children("rank")

    def on_wake(descriptor, children):
        if descriptor == wake:
            take_signals(descriptor, children)
        elif not os.read(descriptor, 4096):  # who started this node has ended, or wants its end
            children.interrupted = children.interrupted or signal.SIGTERM
            watched.remove(descriptor)

    watched = [wake, *inputs]
    for rank in range(first, first + count):
        environment = {**os.environ, "TREERING_RANK": str(rank), "TREERING_RANKS": str(ranks), "TREERING_ID": "-"}
        try:
            child = children.start(rank, command_of(options), environment, line, preexec_fn=end_with_parent)
        except OSError as error:
            print(f"treering.run: {options.python} cannot be started: {error.strerror}", file=sys.stderr)
            children.first_failure = 127
            break
        child.stdin.close()
    return children.wait_for_all(watched, on_wake)


def run_hosts(options, line):
    """A node on each host, which starts its ranks."""
    wake = signals_as_descriptor()
    children = Children("host")
    ranks = sum(count for _, count in options.hosts)
    variables = [f"{name}={value}" for name, value in os.environ.items()
                 if name.startswith("TREERING_") and name not in ("TREERING_HOSTID", "TREERING_SWITCHES")]
    variables += [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []
    first = 0
    for host, count in options.hosts:
        node = [options.python, "-m", "treering.run", "--node", f"{first}:{count}:{ranks}", "--python", options.python,
                *(["-m"] if options.module else []), options.program, *options.arguments]
        shell_line = f"cd {shlex.quote(os.getcwd())} && exec env {shlex.join([*variables, *node])}"
        children.start(host, launcher_command(options.launcher, host, shell_line), dict(os.environ), line,
                       start_new_session=True)
        first += count
    return children.wait_for_all([wake], take_signals)


def launcher_command(launcher, host, shell_line):
    words = shlex.split(launcher)
    if not any("{command}" in word for word in words):
        words += ["sh", "-c", "{command}"]
    return [word.replace("{host}", host).replace("{command}", shell_line) for word in words]


def main(arguments=None):
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.node is not None:
        first, count, ranks = (int(part) for part in options.node.split(":"))
        return run_ranks(options, first, count, ranks, read_line(0), inputs=[0])
    from . import _native

    # This process made the id and lives until all ranks have ended: they meet here.
    line = _native.unique_id().hex().encode() + b"\n"
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
