#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several hosts with real verbs devices: a guest machine with Debian's kernel and its soft-RoCE (rdma_rxe), emulated by QEMU.

      host 0 (own network, pid, IPC, UTS and mount namespace)
        eth0  10.88.0.1/24  fd88::1/64   ------------- veth ---- h0eth --+
        rxe0  on re0, 10.89.0.1/24  (in the guest's  - veth ---- h0d0  --|--+
        rxe1  on re1, 10.89.1.1/24   own network)    - veth ---- h0d1  --|--|--+
      host 1                                                             |  |  |
        eth0  10.88.0.2/24  fd88::2/64   ------------- veth ---- h1eth --+  |  |
        rxe2  on re2, 10.89.0.2/24       ------------- veth ---- h1d0  --|--+  |
        rxe3  on re3, 10.89.1.2/24       ------------- veth ---- h1d1  --|--|--+
                                                                      breth br0 br1

A host has only its own devices in /dev/infiniband and /sys/class/infiniband. Device d of a host reaches device d of the others.
GID 0 of a device is link-local, GID 1 its IPv4 address. Loss, delay and rate limits (netem) are on the way to a host.

The guest sees the machine's files at their paths, so programs run as they are. What it writes is gone afterwards, but for what
is in `lab.results` and in the folders `writable`. What changes on the machine while it runs may not be seen in it.
Booting takes some 6 s, or minutes where others compute: use one lab for many commands. Speed is for function only.

As a library:
    with RdmaLab(hosts=2, devices=1, loss_percent=0) as lab:
        results = lab.run(["program", "argument"], timeout=60)   # on each host; lab.run_all() runs different ones

As a command, which runs the same program on every host:
    rdmalab.py run --hosts 2 [--devices 2] [--loss 1] [--per-host 1] -- command...
A process finds in its environment RDMALAB_HOSTS (names), RDMALAB_ADDRESSES (Ethernet), RDMALAB_ADDRESSES6, RDMALAB_DEVICES (its
host's), RDMALAB_DEVICE_ADDRESSES (those of its host's devices; each with commas), RDMALAB_HOST (its host's number), RDMALAB_RANK
and RDMALAB_RANKS (with `run`), RDMALAB_RESULTS (a folder), and TREERING_HOSTID (its host's name).
"""

import argparse
import base64
import collections
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import qemu
from kernel import Unavailable, prepare

SKIP = 77  # Meson's exit status of a test that cannot be run here
MOST_HOSTS, MOST_DEVICES = 4, 2
BOOT_SECONDS = 600
ANSWER_SECONDS = 300  # after a command's own timeout, which the guest sees to
HERE = os.path.dirname(os.path.abspath(__file__))

Result = collections.namedtuple("Result", "host status output timed_out")


class GuestFailed(Exception):
    """The guest did not boot, ended, or does not answer; the text has the end of its console."""


class Command:
    """A program on a host. `wait` returns its Result; `signal` is for all processes of its process group."""

    def __init__(self, lab, number, host, timeout, on_output):
        self._lab, self._number, self._host, self._on_output = lab, number, host, on_output
        self._deadline = time.monotonic() + timeout + ANSWER_SECONDS
        self._ended = threading.Event()
        self._output, self._answer = bytearray(), None

    @property
    def output(self):
        """What it has written so far, to both of its outputs."""
        return self._output.decode(errors="replace")

    def wait(self):
        if not self._ended.wait(max(0.0, self._deadline - time.monotonic())):
            raise self._lab.failure(f"no answer {ANSWER_SECONDS} s after a command's timeout")
        if self._answer is None:
            raise self._lab.failure("the guest has ended")
        return Result(self._host, self._answer["status"], self.output, self._answer["timed_out"])

    def running(self):
        return not self._ended.is_set()

    def signal(self, number=signal.SIGKILL):
        self._lab.send({"id": self._number, "signal": int(number)})

    def write(self, text):
        """For its standard input, where it was started with has_input."""
        self._lab.send({"id": self._number, "input": text})

    # For the thread that reads what the guest says; None: it says no more.
    def take(self, message):
        if message is not None and "output" in message:
            data = base64.b64decode(message["output"])
            self._output += data
            if self._on_output:
                self._on_output(data)
            return
        self._answer = message
        self._ended.set()


def require():
    """Raises Unavailable where no RdmaLab can be made. The first time it fetches and unpacks the guest's kernel."""
    qemu.require()
    return prepare()


class RdmaLab:
    """1 to 4 hosts with 1 or 2 devices each. loss_percent, mbit (0: no limit) and delay_us are those of all RDMA links."""

    def __init__(self, hosts=2, devices=1, loss_percent=0.0, mbit=0, delay_us=0, writable=(), boot_timeout=BOOT_SECONDS):
        if not 1 <= hosts <= MOST_HOSTS or not 1 <= devices <= MOST_DEVICES:
            raise ValueError(f"{hosts} hosts with {devices} devices: 1 to {MOST_HOSTS} with 1 to {MOST_DEVICES} are possible")
        self.hosts, self.devices = hosts, devices
        self.names = [f"rdmahost{host}" for host in range(hosts)]
        self.folder = self.results = self._keeper = None
        self._writable = [os.path.abspath(folder) for folder in writable]
        self._commands, self._numbers, self._lock = {}, 0, threading.Lock()
        self._gone, self._sending = False, threading.Lock()
        self._pids = []
        self._ready = threading.Event()
        self._request_pipe = self._reader = None
        try:
            self._boot(*require())
            if not self._ready.wait(boot_timeout) or self._gone:
                raise self.failure("the guest does not boot")
            if loss_percent or mbit or delay_us:
                for host in range(hosts):
                    for device in range(devices):
                        self.impair(host, device, loss_percent, mbit, delay_us)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def address(self, host, family=4):
        """The address of the host's Ethernet."""
        return f"10.88.0.{host + 1}" if family == 4 else f"fd88::{host + 1}"

    def device_name(self, host, device=0):
        return f"rxe{host * self.devices + device}"

    def device_address(self, host, device=0):
        """What GID 1 of the device is made of."""
        return f"10.89.{device}.{host + 1}"

    def holder_pid(self, host):
        """A process that has the host's namespaces, by its number in the guest outside of all hosts."""
        return self._pids[host]

    def environment(self, host):
        """What a process of `host` finds in its environment besides the caller's."""
        return {
            "RDMALAB_HOSTS": ",".join(self.names),
            "RDMALAB_ADDRESSES": ",".join(self.address(h) for h in range(self.hosts)),
            "RDMALAB_ADDRESSES6": ",".join(self.address(h, family=6) for h in range(self.hosts)),
            "RDMALAB_DEVICES": ",".join(self.device_name(host, d) for d in range(self.devices)),
            "RDMALAB_DEVICE_ADDRESSES": ",".join(self.device_address(host, d) for d in range(self.devices)),
            "RDMALAB_HOST": str(host),
            "RDMALAB_RESULTS": self.results,
            "TREERING_HOSTID": self.names[host],
        }

    def start(self, host, argv, timeout, env=None, on_output=None, has_input=False):
        """Starts a program on a host, or in the guest outside of all hosts (None); a Command. After `timeout` seconds it is
        killed. `on_output` is called with bytes, by another thread."""
        own = {} if host is None else self.environment(host)
        with self._lock:
            self._numbers += 1
            command = self._commands[self._numbers] = Command(self, self._numbers, host, timeout, on_output)
            number = self._numbers
            if self._gone:
                command.take(None)
        self.send({"id": number, "host": host, "argv": [str(word) for word in argv], "cwd": os.getcwd(), "timeout": timeout,
                   "input": has_input, "env": {**os.environ, **own, **(env or {})}})
        return command

    def run_all(self, commands, timeout, env=None):
        """Runs (host, argv) or (host, argv, env) at once; a Result for each. After `timeout` seconds all are killed."""
        started = []
        for host, argv, *own in commands:
            started.append(self.start(host, argv, timeout, {**(env or {}), **(own[0] if own else {})}))
        return [command.wait() for command in started]

    def run(self, argv, timeout, per_host=1, env=None):
        """Runs the same program `per_host` times on each host, as ranks; a Result for each rank. A string is a bash script."""
        return [command.wait() for command in self.start_ranks(argv, timeout, per_host, env)]

    def start_ranks(self, argv, timeout, per_host=1, env=None, on_output=None):
        """As `run`, but returns Commands. `on_output` is called with the host and bytes."""
        argv = ["bash", "-c", argv] if isinstance(argv, str) else argv
        ranks, commands = self.hosts * per_host, []
        for rank in range(ranks):
            host = rank // per_host
            own = {"RDMALAB_RANK": str(rank), "RDMALAB_RANKS": str(ranks), **(env or {})}
            listener = (lambda data, host=host: on_output(host, data)) if on_output else None
            commands.append(self.start(host, argv, timeout, own, listener))
        return commands

    def impair(self, host, device, loss_percent=0.0, mbit=0, delay_us=0):
        """Sets what happens to packets on their way to a host's device, or by Ethernet to the host (device None)."""
        rate = f" rate {mbit}mbit" if mbit else ""
        loss = f" loss {loss_percent}%" if loss_percent else ""
        self._inside(f"tc qdisc replace dev {_port(host, device)} root netem limit 10000 delay {delay_us}us{loss}{rate}")

    def cut(self, host, device):
        """Nothing passes between host and switch any more; as with a dead switch, neither end is told. Device None: its Ethernet."""
        self._inside(f"ip link set dev {_port(host, device)} nomaster")

    def heal(self, host, device):
        bridge = "breth" if device is None else f"br{device}"
        self._inside(f"ip link set dev {_port(host, device)} master {bridge}")

    def set_port(self, host, device, up):
        """Pulls the cable of a device, which the host sees, or puts it back."""
        self._inside(f"ip link set dev {_port(host, device)} {'up' if up else 'down'}")

    def failure(self, what):
        """A GuestFailed with what the guest and QEMU have said last."""
        text = what
        for name in ("console.log", "qemu.log"):
            with contextlib.suppress(OSError, TypeError):
                with open(os.path.join(self.folder, name), errors="replace") as file:
                    text += "".join(f"\n  {line.rstrip()}" for line in file.readlines()[-30:])
        return GuestFailed(text)

    def send(self, message):
        with self._sending:
            try:
                self._request_pipe.write(json.dumps(message).encode() + b"\n")
                self._request_pipe.flush()
            except (OSError, ValueError):
                pass  # the reader finds that the guest has ended

    def close(self):
        if self._keeper is None:
            return
        self._keeper.stdin.close()  # it ends QEMU, removes the folder, and then itself
        try:
            self._keeper.wait(timeout=60)
        finally:
            self._keeper.stdout.close()
            if self._reader is not None:
                self._reader.join(timeout=10)
            with contextlib.suppress(OSError):
                self._request_pipe.close()
            self._keeper = None

    def _inside(self, line):
        result = self.run_all([(None, line.split())], ANSWER_SECONDS, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})[0]
        if result.status != 0:
            raise self.failure(f"{line}: {result.output}")

    # QEMU is the child of a process that ends when its input does, however this one ends.
    def _boot(self, image, initramfs):
        request_end, self._request_pipe = _pipe("wb", 1)
        answer_end, answers = _pipe("rb", 0)
        keeper = subprocess.Popen([sys.executable, os.path.join(HERE, "qemu.py"), str(request_end), str(answer_end)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(request_end, answer_end),
                                  start_new_session=True)
        self._keeper = keeper
        os.close(request_end)
        os.close(answer_end)
        self.folder = keeper.stdout.readline().decode().rstrip("\n")
        self.results = os.path.join(self.folder, "results")
        writable = [(f"w{index}", path) for index, path in enumerate([self.results, *self._writable])]
        with open(os.path.join(self.folder, "config.json"), "w") as file:
            json.dump(self._config(writable), file)
        with open(os.path.join(self.folder, "start"), "w") as file:
            words = [sys.executable, "-E", "-s", "-S", "-B", os.path.join(HERE, "guest.py")]
            file.write(f"export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8\nexec {shlex.join(words)}\n")
        keeper.stdin.write(json.dumps(qemu.command_line(image, initramfs, self.folder, writable)).encode() + b"\n")
        keeper.stdin.flush()
        self._reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self._reader.start()

    def _config(self, writable):
        def device(host, number):
            own = self.device_name(host, number)
            return {"name": own, "netdev": own.replace("rxe", "re"), "number": number, "port": _port(host, number),
                    "address": self.device_address(host, number), "network": f"10.89.{number}.0/24",
                    "mac": f"02:89:00:00:{number:02x}:{host + 1:02x}",
                    "link_local": f"fe80::89:ff:fe00:{number << 8 | host + 1:x}"}

        names = "".join(f"{self.address(h)} {self.names[h]}\n{self.address(h, 6)} {self.names[h]}\n" for h in range(self.hosts))
        return {"writable": writable, "names": names, "hosts": [
            {"name": self.names[host], "port": _port(host, None),
             "address": self.address(host), "address6": self.address(host, 6),
             "devices": [device(host, number) for number in range(self.devices)]} for host in range(self.hosts)]}

    def _read(self, answers):
        with answers:
            for line in answers:
                message = json.loads(line)
                if "ready" in message:
                    self._pids = message["pids"]
                    self._ready.set()
                else:
                    with self._lock:
                        command = self._commands[message["id"]] if "output" in message else self._commands.pop(message["id"])
                    command.take(message)
        with self._lock:
            commands, self._commands = self._commands, {}
            self._gone = True
        self._ready.set()
        for command in commands.values():
            command.take(None)


def _port(host, device):
    return f"h{host}eth" if device is None else f"h{host}d{device}"


def _pipe(mode, own):
    """The other process's descriptor, and a file of this process's end."""
    ends = os.pipe()
    return ends[1 - own], os.fdopen(ends[own], mode)


def _run_command(options):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines, lock = collections.defaultdict(bytes), threading.Lock()

    def relay(host, data):
        with lock:
            *whole, lines[host] = (lines[host] + data).split(b"\n")
            for line in whole:
                print(f"{lab.names[host]}: {line.decode(errors='replace')}", flush=True)

    with RdmaLab(options.hosts, options.devices, options.loss, options.mbit, options.delay_us, options.writable) as lab:
        status = 0
        for command in lab.start_ranks(options.command, options.timeout, options.per_host, on_output=relay):
            result = command.wait()
            if result.timed_out:
                print(f"rdmalab: after {options.timeout} s not at its end: {shlex.join(options.command)}", file=sys.stderr)
                status = status or 124
            status = status or (result.status if result.status >= 0 else 128 - result.status)
        for host in [host for host in lines if lines[host]]:
            relay(host, b"\n")  # a last line without an end
        return status


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run = parser.add_subparsers(required=True).add_parser("run", help="run a command on every host")
    run.add_argument("--hosts", type=int, default=2)
    run.add_argument("--devices", type=int, default=1, help="of each host")
    run.add_argument("--loss", type=float, default=0.0, help="percent of the packets between devices")
    run.add_argument("--mbit", type=int, default=0, help="of each device; 0: no limit")
    run.add_argument("--delay-us", type=int, default=0, help="one-way, between any two devices")
    run.add_argument("--per-host", type=int, default=1, help="processes on each host")
    run.add_argument("--timeout", type=float, default=300, help="seconds until everything is ended")
    run.add_argument("--writable", action="append", default=[], metavar="FOLDER", help="what is written there stays")
    run.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        return _run_command(options)
    except Unavailable as reason:
        print(f"rdmalab: unavailable: {reason}", file=sys.stderr)
        return SKIP
    except GuestFailed as reason:
        print(f"rdmalab: {reason}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
