# SPDX-License-Identifier: Apache-2.0
"""The hosts of an RdmaLab's guest: its devices, the links between them, and a process for each host that holds its namespaces."""

import ctypes
import glob
import os
import signal
import stat
import subprocess
import time

SETUP_DEADLINE = 300
def run(argv, text=None):
    done = subprocess.run(argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout.strip()}\n{text or ''}")


def batch(tool, lines, prefix=()):
    run([*prefix, tool, "-b", "-"], "\n".join(lines) + "\n")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read().strip()


def wait_for(what, condition):
    deadline = time.monotonic() + SETUP_DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not so after {SETUP_DEADLINE} s")
        time.sleep(0.01)


class Hosts:
    """The hosts' namespaces and links. The names and addresses are those that `config` has for each host."""

    def __init__(self, config):
        self.hosts = config["hosts"]
        self.pids = []
        write("/proc/sys/kernel/hostname", "rdmalab")
        for tag, path in config["writable"]:
            run(["mount", "-t", "9p", "-o", "rw,trans=virtio,version=9p2000.L,msize=512000", tag, path])
        self._make_devices()
        self._start_hosts("127.0.0.1 localhost\n::1 localhost\n" + config["names"])
        self._join_hosts()

    # Soft-RoCE of this kernel works in the first network namespace only, so all devices are there. Packets between two addresses
    # of one namespace would stay inside of it: the table of local addresses is looked at only for what comes in by a device, and
    # what leaves a device has a table of its own. All neighbours are known from the start, so that loss hits nothing but data.
    def _make_devices(self):
        for name, value in {"all/rp_filter": 0, "default/rp_filter": 0, "all/accept_local": 1, "all/arp_ignore": 1}.items():
            write(f"/proc/sys/net/ipv4/conf/{name}", str(value))
        write("/proc/sys/net/ipv6/conf/default/accept_dad", "0")
        lines = ["link set lo up", "rule add pref 300 lookup local", "rule del pref 0"]
        for number in range(len(self.hosts[0]["devices"])):
            lines += [f"link add br{number} mtu 9000 type bridge", f"link set br{number} up"]
        devices = [device for host in self.hosts for device in host["devices"]]
        for index, device in enumerate(devices):
            port, own, address, table = device["port"], device["netdev"], device["address"], 1000 + index
            lines += [f"link add {own} mtu 9000 address {device['mac']} type veth peer name {port} mtu 9000",
                      f"link set {port} master br{device['number']} up", f"link set {own} up",
                      f"addr add {address}/24 dev {own}",
                      f"rule add pref 100 iif {own} lookup local", f"rule add pref 200 oif {own} lookup {table}",
                      f"route add local {address} dev {own} table {table}",
                      f"route add {device['network']} dev {own} src {address} table {table}"]
            lines += [f"neigh add {to} lladdr {other['mac']} dev {own} nud permanent"
                      for other in devices if other["number"] == device["number"] and other is not device
                      for to in (other["address"], other["link_local"])]
        batch("ip", lines)
        batch("rdma", [f"link add {device['name']} type rxe netdev {device['netdev']}" for device in devices])
        for device in devices:
            gid = f"/sys/class/infiniband/{device['name']}/ports/1/gids/1"
            wait_for(f"{gid} is IPv4's", lambda: read(gid).startswith("0000:0000:0000:0000:0000:ffff:"))

    def _start_hosts(self, names):
        verbs = {read(f"{path}/ibdev"): os.path.basename(path) for path in glob.glob("/sys/class/infiniband_verbs/uverbs*")}
        for index, host in enumerate(self.hosts):
            folder = f"/run/hosts/{index}"
            os.makedirs(f"{folder}/infiniband")
            write(f"{folder}/hosts", names)
            for node in ["rdma_cm", *(verbs[device["name"]] for device in host["devices"])]:
                os.mknod(f"{folder}/infiniband/{node}", stat.S_IFCHR, os.stat(f"/dev/infiniband/{node}").st_rdev)
                os.chmod(f"{folder}/infiniband/{node}", 0o666)
            links = [f"infiniband/{device['name']}" for device in host["devices"]]
            links += [f"infiniband_verbs/{verbs[device['name']]}" for device in host["devices"]]
            self.pids.append(_start_host(host["name"], folder, links))

    def _join_hosts(self):
        lines = ["link add breth type bridge", "link set breth up"]
        for host, pid in zip(self.hosts, self.pids):
            lines += [f"link add {host['port']} type veth peer name eth0 netns {pid}",
                      f"link set {host['port']} master breth up"]
        batch("ip", lines)
        for host, pid in zip(self.hosts, self.pids):
            batch("ip", ["link set lo up", f"addr add {host['address']}/24 dev eth0",
                         f"addr add {host['address6']}/64 dev eth0 nodad", "link set eth0 up"],
                  prefix=["nsenter", f"--target={pid}", "--net"])


# By system calls: a program for each of them would take a tenth of a second, and there are dozens.
_libc = ctypes.CDLL(None, use_errno=True)
CLONE_ALL = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount, UTS, IPC, pid and network namespace
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


def _check(status, what):
    if status != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source, target, kind=None, flags=0):
    encoded = [text and text.encode() for text in (source, target, kind)]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), None), f"mount {target}")


def _start_host(name, folder, links):
    """Starts process 1 of a host; its number outside of the host."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _check(_libc.unshare(CLONE_ALL), "unshare")
            if os.fork() == 0:
                number = os.readlink("/proc/self")  # as long as this is the /proc of outside
                _prepare_host(name, folder, links)
                os.write(writer, number.encode())
                os.close(writer)
                _reap_orphans()
        except BaseException as failure:
            os.write(writer, str(failure).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    if not said.isdigit():
        raise RuntimeError(f"{name}: {said}")
    return int(said)


def _prepare_host(name, folder, links):
    _mount(None, "/", flags=MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc")
    write("/proc/sys/kernel/hostname", name)
    _mount(f"{folder}/infiniband", "/dev/infiniband", flags=MS_BIND)
    if not os.path.exists("/etc/hosts"):  # of the guest: what it writes is gone afterwards
        write("/etc/hosts", "")
    _mount(f"{folder}/hosts", "/etc/hosts", flags=MS_BIND)
    _mount("tmpfs", "/dev/shm", "tmpfs")
    # A new /sys shows the host's Ethernet. It has only a part of the devices, for all hosts: they are from the old one.
    old = f"{folder}/sys"
    os.mkdir(old)
    _mount("/sys", old, flags=MS_BIND)
    _mount("sysfs", "/sys", "sysfs")
    for kind in ("infiniband", "infiniband_verbs"):
        _mount(f"{old}/devices/virtual/{kind}", f"/sys/devices/virtual/{kind}", flags=MS_BIND)
        _mount("tmpfs", f"/sys/class/{kind}", "tmpfs")
    write("/sys/class/infiniband_verbs/abi_version", read(f"{old}/class/infiniband_verbs/abi_version") + "\n")
    for link in links:
        os.symlink(f"../../devices/virtual/{link}", f"/sys/class/{link}")


def _reap_orphans():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait([signal.SIGCHLD])
