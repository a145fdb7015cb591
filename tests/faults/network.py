# SPDX-License-Identifier: Apache-2.0
"""Faults of the network and of the hosts of a Lab. Each is undone by what it returns."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "netlab"))
from netlab import SKIP, Lab, Unavailable  # noqa: E402,F401

TABLE = "treering_faults"


class Hosts:
    """A Lab that many runs use one after the other."""

    def __init__(self, hosts=4):
        self.lab = Lab(hosts, mbit=0)
        self._undo = []
        self._other_bridge = False

    def close(self):
        self.lab.close()

    def run(self, host, *argv, text=None, check=True):
        """A command in the namespaces of a host; host None: of the switch."""
        pid = self.lab.holder_pid(host) if host is not None else self.lab._switch.pid
        done = subprocess.run(["nsenter", f"--target={pid}", "--net", "--mount", "--", *argv], input=text, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
        if check and done.returncode != 0:
            raise Unavailable(f"{' '.join(argv)}: {done.stdout.strip()}")
        return done.stdout

    def restore(self):
        """Undoes all faults. Hosts also forget what TCP has learned of the paths, which would slow down the next run."""
        if not self._undo:
            return
        while self._undo:
            self._undo.pop()()
        for host in range(self.lab.hosts):
            self.run(host, "ip", "tcp_metrics", "flush", "all", check=False)
            self.run(host, "ip", "neigh", "flush", "all", check=False)

    def _ip(self, host, *lines):
        self.run(host, "ip", "-batch", "-", text="\n".join(lines) + "\n")

    def _later(self, undo):
        self._undo.append(undo)

    def cut(self, hosts):
        for host in hosts:
            self._ip(None, f"link set h{host}n0 nomaster")
        self._later(lambda: self._heal(hosts))

    def _heal(self, hosts):
        for host in hosts:
            self._ip(None, f"link set h{host}n0 master br0")

    def take_down(self, hosts):
        """The hosts' own devices lose their carrier."""
        for host in hosts:
            self._ip(None, f"link set h{host}n0 down")
        self._later(lambda: [self._ip(None, f"link set h{host}n0 up") for host in hosts])

    def part(self, hosts):
        """These on one side, all others on the other."""
        if not self._other_bridge:
            self._ip(None, "link add br0x type bridge stp_state 0 forward_delay 0 mcast_snooping 0", "link set br0x up")
            self._other_bridge = True
        for host in hosts:
            self._ip(None, f"link set h{host}n0 master br0x")
        self._later(lambda: self._heal(hosts))

    def _nft(self, host, chain, *rules):
        body = "\n".join(f"    {rule}" for rule in rules)
        family = "netdev" if "ingress" in chain else "inet"
        self.run(host, "nft", "-f", "-",
                 text=f"table {family} {TABLE} {{\n  chain c {{\n    {chain}; policy accept;\n{body}\n  }}\n}}\n")
        self._later(lambda: self.run(host, "nft", "delete", "table", family, TABLE, check=False))

    def drop_in(self, host, what=""):
        self._nft(host, "type filter hook prerouting priority -300", f'iifname "eth0" {what} drop')

    def drop_out(self, host, what=""):
        """On the switch: a local drop would be an error of the sender's system call."""
        self._nft(None, f'type filter hook ingress device "h{host}n0" priority 0', f"{what} drop")

    def drop_family(self, host, family):
        self.drop_in(host, f"meta nfproto {family}")
        self.drop_out(host, f"meta protocol {'ip' if family == 'ipv4' else 'ip6'}")

    def reject(self, host):
        """Whatever of TCP comes is answered by a reset."""
        self._nft(host, "type filter hook input priority 0", 'iifname "eth0" meta l4proto tcp reject with tcp reset')

    def reset(self, host):
        """All connections of the host end by a reset; how many."""
        self._later(lambda: None)
        return len(self.run(host, "ss", "-K", "-t", "-H", "state", "established").splitlines())

    def lose(self, percent):
        for host in range(self.lab.hosts):
            self._nft(host, "type filter hook prerouting priority -300",
                      f'iifname "eth0" numgen random mod 100 < {percent} drop')

    def shrink_buffers(self, mbit):
        script = "".join(f"echo 4096 16384 32768 > /proc/sys/net/ipv4/tcp_{name};" for name in ("wmem", "rmem"))
        before = {}
        for host in range(self.lab.hosts):
            before[host] = [self.run(host, "cat", f"/proc/sys/net/ipv4/tcp_{name}").strip() for name in ("wmem", "rmem")]
            self.run(host, "sh", "-ec", script)
            self.run(host, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst", "16k",
                     "latency", "100ms")

        def undo():
            for host, (wmem, rmem) in before.items():
                self.run(host, "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
                self.run(host, "sh", "-ec", f"echo {wmem} > /proc/sys/net/ipv4/tcp_wmem; echo {rmem} > /proc/sys/net/ipv4/tcp_rmem")
        self._later(undo)

    def fill_shared_memory(self):
        for host in range(self.lab.hosts):
            self.run(host, "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /dev/shm && "
                     "head -c 65536 /dev/zero > /dev/shm/full; test -s /dev/shm/full")
        self._later(lambda: [self.run(host, "umount", "--lazy", "/dev/shm") for host in range(self.lab.hosts)])

    def names_in_shared_memory(self):
        return [name for host in range(self.lab.hosts) for name in self.run(host, "ls", "/dev/shm").split() if name != "full"]

    def lacks(self):
        """What faults need and the machine does not have: {need: why}."""
        lacking = {}
        if shutil.which("nft") is None:
            lacking["nft"] = "the program \"nft\" is not installed (package nftables)"
        else:
            try:
                for fault in (lambda: self.lose(1), lambda: self.drop_out(0), lambda: self.reject(0)):
                    fault()
                    self.restore()
            except Unavailable as reason:
                lacking["nft"] = str(reason)
        if shutil.which("ss") is None or not self._kills_sockets():
            lacking["ss -K"] = "ss -K ends no connection (the kernel lacks CONFIG_INET_DIAG_DESTROY)"
        return lacking

    def _kills_sockets(self):
        script = ("import socket\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\n"
                  "import subprocess\nsubprocess.run(['ss', '-K', '-t', 'state', 'established'], stdout=subprocess.DEVNULL)\n"
                  "c.settimeout(1)\ntry:\n    c.recv(1)\nexcept TimeoutError:\n    print('no')\nexcept OSError:\n    print('yes')\n")
        return self.run(0, sys.executable, "-c", script, check=False).strip() == "yes"
