#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A network of several hosts on one machine: network namespaces joined by veth pairs and a bridge for each network.

      host 0 (own network, UTS, IPC and mount namespace)         switch (own network namespace)
        eth0  10.77.0.1/24  fd77:1::1/64   ---- veth ----   h0n0 --+
        eth1  10.77.1.1/24  fd77:2::1/64   ---- veth ----   h0n1 --|--+
      host 1                                                       |  |
        eth0  10.77.0.2/24  fd77:1::2/64   ---- veth ----   h1n0 --+  |
        eth1  10.77.1.2/24  fd77:2::2/64   ---- veth ----   h1n1 --|--+
                                                                 br0  br1

Each link is limited in both directions (tc tbf); delay and loss (netem) are on the way from the switch to a host, so that
`delay_us` is the one-way delay between any two hosts. Nothing is made in the namespaces of the caller, not even a name:
the namespaces are held by one process each, which ends, and ends all others in them, when the Lab does, however it ends.

As a library:
    with Lab(4, mbit=1000) as lab:
        results = lab.run_all([(host, ["program", "argument"]) for host in range(lab.hosts)], timeout=60)

As a command, which runs the same program on every host:
    netlab.py run --hosts 4 --mbit 1000 [--delay-us 50] [--nics 2] [--per-host 1] -- command...
A process finds in its environment NETLAB_HOSTS (names), NETLAB_ADDRESSES (IPv4 of the first NIC), NETLAB_ADDRESSES6 (each
with commas), NETLAB_HOST (its host's number), NETLAB_RANK, NETLAB_RANKS, and TREERING_HOSTID (its host's name).
"""

import argparse
import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

SKIP = 77  # Meson's exit status of a test that cannot be run here
MOST_HOSTS = 8

Result = collections.namedtuple("Result", "host status output timed_out")
_labs = 0


class Unavailable(Exception):
    """The machine cannot make a Lab; the text says why."""


def _run(argv, text=None):
    done = subprocess.run(argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(argv)}: {done.stdout.strip()}\n{text or ''}")
    return done.stdout


class Lab:
    """2 to 8 hosts. `host_mbit` gives single hosts another rate ({host: mbit}), `nic_mbit` single NICs ({(host, nic): mbit})."""

    def __init__(self, hosts=2, mbit=1000, delay_us=0, loss_percent=0.0, nics=1, host_mbit=None, nic_mbit=None, mtu=1500):
        global _labs
        if not 2 <= hosts <= MOST_HOSTS or not 1 <= nics <= 4:
            raise ValueError(f"{hosts} hosts with {nics} NICs: 2 to {MOST_HOSTS} hosts with 1 to 4 NICs are possible")
        self.hosts, self.nics = hosts, nics
        self._rates = {(h, n): mbit for h in range(hosts) for n in range(nics)}
        self._rates.update({(h, n): rate for h, rate in (host_mbit or {}).items() for n in range(nics)})
        self._rates.update(nic_mbit or {})
        self._delay_us, self._loss_percent, self._mtu = delay_us, loss_percent, mtu
        _labs += 1
        prefix = f"tr{os.getpid()}" + (f"x{_labs}" if _labs > 1 else "")
        self.names = [f"{prefix}h{host}" for host in range(hosts)]
        self._holders, self._processes = [], []
        self._switch = None
        try:
            self._require()
            self._hold_namespaces(prefix)
            self._make_networks()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def address(self, host, nic=0, family=4):
        return f"10.77.{nic}.{host + 1}" if family == 4 else f"fd77:{nic + 1}::{host + 1}"

    # The pid of the process that holds the host's namespaces, for nsenter.
    def holder_pid(self, host):
        return self._holders[host].pid

    # What a process of `host` finds in its environment besides the caller's.
    def environment(self, host):
        return {
            "NETLAB_HOSTS": ",".join(self.names),
            "NETLAB_ADDRESSES": ",".join(self.address(h) for h in range(self.hosts)),
            "NETLAB_ADDRESSES6": ",".join(self.address(h, family=6) for h in range(self.hosts)),
            "NETLAB_HOST": str(host),
            "TREERING_HOSTID": self.names[host],
        }

    def popen(self, host, argv, env=None, **options):
        """Starts a program on a host; the process of the Popen is the program itself."""
        full = {**os.environ, **self.environment(host), **(env or {})}
        options.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(self._enter(self._holders[host], *argv), env=full, **options)
        self._processes.append(process)
        return process

    def run_all(self, commands, timeout, env=None):
        """Runs (host, argv) or (host, argv, env) at once; a Result for each. After `timeout` seconds all are killed."""
        deadline = time.monotonic() + timeout
        started = []
        for host, argv, *own in commands:
            more = {**(env or {}), **(own[0] if own else {})}
            started.append((host, self.popen(host, argv, more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)))
        results = [None] * len(started)

        def collect(index):
            host, process = started[index]
            timed_out = False
            try:
                output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                timed_out = True
                process.kill()
                try:  # what it started may still hold the pipe
                    output, _ = process.communicate(timeout=2)
                except subprocess.TimeoutExpired as late:
                    output = late.output or b""
            results[index] = Result(host, process.returncode, output.decode(errors="replace"), timed_out)

        threads = [threading.Thread(target=collect, args=(i,)) for i in range(len(started))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def cut(self, host, nic=None):
        """Nothing passes between the host and the switch any more; as with a dead switch, no end is told."""
        self._set_ports(host, nic, lambda n: "nomaster")

    def heal(self, host, nic=None):
        self._set_ports(host, nic, lambda n: f"master br{n}")

    def drop_large_packets_of(self, host, most):
        """Packets of more than so many bytes from the host get lost, as behind a switch with a smaller MTU."""
        _run(self._enter(self._switch, "nft", "-f", "-"),
             f'table netdev netlab {{\n chain large {{\n  type filter hook ingress device "h{host}n0" priority 0;\n'
             f"  meta length > {most} drop\n }}\n}}\n")

    def close(self):
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for holder in [*self._holders, self._switch]:
            if holder is None:
                continue
            with contextlib.suppress(BrokenPipeError):  # it has ended: the kernel forbids namespaces
                holder.stdin.close()  # it ends what is left in its namespaces, and then itself
            try:
                holder.wait(timeout=10)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()
            holder.stdout.close()
        for process in self._processes:  # not before: a grandchild could keep a reader of the pipe waiting
            if process.stdout is not None:
                process.stdout.close()
        self._processes, self._holders, self._switch = [], [], None

    def _require(self):
        for tool in ("ip", "tc", "unshare", "nsenter", "mount"):
            if shutil.which(tool) is None:
                raise Unavailable(f"the program \"{tool}\" is not installed (packages iproute2, util-linux, mount)")
        if os.geteuid() != 0:
            raise Unavailable("making network namespaces needs root")

    def _hold_namespaces(self, prefix):
        self._switch = self._start_holder(f"{prefix}switch", "")
        table = "127.0.0.1 localhost\n::1 localhost\n"
        for host, name in enumerate(self.names):
            table += f"{self.address(host)} {name}\n{self.address(host, family=6)} {name}\n"
        for name in self.names:
            self._holders.append(self._start_holder(name, table))
        for holder in [self._switch, *self._holders]:
            line = holder.stdout.readline().decode().strip()
            if line != "ready":
                raise Unavailable(f"no network and mount namespaces here (not root, or / is no mount point, as in a plain chroot): {line or holder.stdout.read().decode().strip()}")

    @staticmethod
    def _start_holder(name, hosts_file):
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "--", sys.executable, os.path.abspath(__file__), "hold", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            holder.stdin.write(hosts_file.encode() + b"\0")
            holder.stdin.flush()
        except BrokenPipeError:
            pass  # it says why
        return holder

    @staticmethod
    def _enter(holder, *argv):
        return ["nsenter", f"--target={holder.pid}", "--net", "--uts", "--ipc", "--mount", f"--wdns={os.getcwd()}", "--", *argv]

    def _batch(self, holder, tool, lines):
        _run(self._enter(holder, tool, "-batch", "-"), "\n".join(lines) + "\n")

    def _make_networks(self):
        switch, limits = ["link set lo up"], []
        for nic in range(self.nics):
            switch.append(f"link add br{nic} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
            switch.append(f"link set br{nic} up")
        for (host, nic) in sorted(self._rates):
            port = f"h{host}n{nic}"
            switch.append(f"link add {port} mtu {self._mtu} type veth peer name eth{nic} mtu {self._mtu} netns {self._holders[host].pid}")
            switch.append(f"link set {port} master br{nic}")
            switch.append(f"link set {port} up")
            limits += self._limits(port, self._rates[host, nic], impaired=True)
        self._batch(self._switch, "ip", switch)
        for host, holder in enumerate(self._holders):
            lines, own_limits = ["link set lo up"], []
            for nic in range(self.nics):
                lines.append(f"addr add {self.address(host, nic)}/24 dev eth{nic}")
                lines.append(f"addr add {self.address(host, nic, family=6)}/64 dev eth{nic} nodad")
                lines.append(f"link set eth{nic} up" + self._offload(nic))
                own_limits += self._limits(f"eth{nic}", self._rates[host, nic], impaired=False)
            self._batch(holder, "ip", lines)
            if own_limits:
                self._batch(holder, "tc", own_limits)
        if limits:
            try:
                self._batch(self._switch, "tc", limits)
            except Unavailable as reason:
                if self._delay_us or self._loss_percent:
                    raise Unavailable(f"delay and loss need the kernel's netem (CONFIG_NET_SCH_NETEM): {reason}") from None
                raise

    # `mbit` is what TCP carries: the filter counts headers too (66 bytes a packet with TCP's timestamps). The queue holds 20 ms,
    # as a switch's does.
    def _limits(self, device, mbit, impaired):
        lines = []
        if mbit:
            lines.append(f"qdisc add dev {device} root handle 1: tbf rate {self._wire_rate(mbit)}bit burst {self._burst(mbit)} latency 20ms")
        if impaired and (self._delay_us or self._loss_percent):
            parent = "parent 1:1" if mbit else "root"
            loss = f" loss {self._loss_percent}%" if self._loss_percent else ""
            lines.append(f"qdisc add dev {device} {parent} handle 10: netem limit 100000 delay {self._delay_us}us{loss}")
        return lines

    def _wire_rate(self, mbit):
        return int(mbit * 1e6 * (self._mtu + 14) / (self._mtu - 52))

    # What the kernel's timers may let pass at once. It has room for a whole packet of segmentation offload, 64 KiB and the headers
    # of its segments; where that is more than 0.65 ms the packets of the network are made smaller, so that they fit the slowest
    # link. tbf cuts larger ones up, and then a ring of four hosts costs 60 % (links of 1 Gbit/s) or 80 % (of 1000 and 250 Mbit/s)
    # of four cores instead of 6 and 25 %, and loses packets.
    def _burst(self, mbit):
        per_second = self._wire_rate(mbit) / 8
        return max(2 * (self._mtu + 14), int(per_second * 0.0005), min(int(per_second * 0.00065), 80 << 10))

    def _offload(self, nic):
        bursts = [self._burst(rate) for (_, own), rate in self._rates.items() if own == nic and rate]
        most = int(min(bursts) * 0.8) if bursts else 64 << 10  # the rest is for headers
        return f" gso_max_size {most}" if most < 64 << 10 else ""

    def _set_ports(self, host, nic, master):
        nics = range(self.nics) if nic is None else [nic]
        self._batch(self._switch, "ip", [f"link set dev h{host}n{n} {master(n)}" for n in nics])


def _hold(name):
    """The process that holds a host's namespaces: prepares them, waits for the end of its input, then ends all others in
    them."""
    def mount(*arguments):
        subprocess.run(["mount", *arguments], check=True)

    table = b""
    while not table.endswith(b"\0"):
        byte = os.read(0, 1)
        if not byte:
            return 1
        table += byte
    with open("/proc/sys/kernel/hostname", "w") as file:
        file.write(name)
    # The link-local addresses of the interfaces to come are of use at once, without the second in which duplicates are looked for.
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv6/conf/default/accept_dad", "w") as file:
        file.write("0")
    # The host's own list of names lives in a file system that is in no directory afterwards.
    mount("-t", "tmpfs", "tmpfs", "/dev/shm")
    if len(table) > 1:
        with open("/dev/shm/hosts", "wb") as file:
            file.write(table[:-1])
        mount("--bind", "/dev/shm/hosts", "/etc/hosts")
    # /sys/class/net shows the devices of the namespace that /sys was mounted in.
    os.mkdir("/dev/shm/sys")
    mount("--rbind", "/sys", "/dev/shm/sys")
    mount("-t", "sysfs", "sysfs", "/sys")
    if os.path.isdir("/sys/fs/cgroup"):
        mount("--rbind", "/dev/shm/sys/fs/cgroup", "/sys/fs/cgroup")
    subprocess.run(["umount", "--lazy", "/dev/shm"], check=True)
    mount("-t", "tmpfs", "tmpfs", "/dev/shm")
    os.write(1, b"ready\n")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    _end_neighbours()
    return 0


def _end_neighbours():
    """Kills all processes in this process's network namespace but itself, until there is none."""
    own = os.readlink("/proc/self/ns/net")
    for _ in range(50):
        found = False
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                if os.readlink(f"/proc/{entry}/ns/net") == own:
                    found = True
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                pass  # it has ended meanwhile
        if not found:
            return
        time.sleep(0.02)


def _relay(name, process, lock):
    for line in process.stdout:
        with lock:
            sys.stdout.write(f"{name}: {line.decode(errors='replace')}")
            sys.stdout.flush()


def _run_command(options):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ranks = options.hosts * options.per_host
    with Lab(options.hosts, options.mbit, options.delay_us, options.loss, options.nics,
             host_mbit=dict(map(int, pair.split("=")) for pair in options.host_mbit), mtu=options.mtu) as lab:
        lock, processes, relays = threading.Lock(), [], []
        for rank in range(ranks):
            host = rank // options.per_host
            env = {"NETLAB_RANK": str(rank), "NETLAB_RANKS": str(ranks)}
            processes.append(lab.popen(host, options.command, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
            relays.append(threading.Thread(target=_relay, args=(lab.names[host], processes[-1], lock), daemon=True))
            relays[-1].start()
        deadline = time.monotonic() + options.timeout
        status = 0
        for process in processes:
            try:
                own = process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f"netlab: after {options.timeout} s not at its end: {' '.join(options.command)}", file=sys.stderr)
                return 124
            status = status or (own if own >= 0 else 128 - own)
        for relay in relays:
            relay.join(timeout=1)
        return status


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "hold":
        return _hold(arguments[1])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run = parser.add_subparsers(required=True).add_parser("run", help="run a command on every host")
    run.add_argument("--hosts", type=int, default=2)
    run.add_argument("--mbit", type=int, default=1000, help="of each link, both directions; 0: no limit")
    run.add_argument("--host-mbit", action="append", default=[], metavar="HOST=MBIT", help="another rate for one host")
    run.add_argument("--delay-us", type=int, default=0, help="one-way, between any two hosts")
    run.add_argument("--loss", type=float, default=0.0, help="percent of the packets")
    run.add_argument("--nics", type=int, default=1)
    run.add_argument("--mtu", type=int, default=1500)
    run.add_argument("--per-host", type=int, default=1, help="processes on each host")
    run.add_argument("--timeout", type=float, default=300, help="seconds until everything is ended")
    run.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        return _run_command(options)
    except Unavailable as reason:
        print(f"netlab: unavailable: {reason}", file=sys.stderr)
        return SKIP


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
