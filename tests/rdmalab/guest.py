# SPDX-License-Identifier: Apache-2.0
"""What runs inside of an RdmaLab's guest, as its process 1: makes the hosts, then runs the commands that rdmalab.py sends.

Requests and answers are lines of JSON on a virtio port. When it closes, or this program fails, the guest ends.
    {"id": 1, "host": 0, "argv": [...], "env": {...}, "cwd": "...", "timeout": 60}   host null: the guest itself
    {"id": 1, "signal": 9}                                                     to all processes of that command
    <- {"ready": true}, {"id": 1, "output": "BASE64"}..., {"id": 1, "status": 0, "timed_out": false}
"""

import base64
import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

SETUP_DEADLINE = 300
# Process 1 of a host: it takes over orphans, as any process 1 does.
HOST_INIT = """
set -e
read -r pid rest </proc/self/stat
mount -t proc proc /proc
echo "$1" >/proc/sys/kernel/hostname
mkdir -p /dev/infiniband
mount --bind "$2/infiniband" /dev/infiniband
mount --bind "$2/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t sysfs sysfs /sys
echo "$pid"
exec </dev/null >/dev/null
while :; do sleep 1000000; done
"""


def run(argv, text=None):
    done = subprocess.run(argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout.strip()}\n{text or ''}")


def batch(tool, lines, prefix=()):
    run([*prefix, tool, "-b", "-"], "\n".join(lines) + "\n")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def wait_for(what, condition):
    deadline = time.monotonic() + SETUP_DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not so after {SETUP_DEADLINE} s")
        time.sleep(0.02)


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
            wait_for(f"{gid} is IPv4's", lambda: open(gid).read().startswith("0000:0000:0000:0000:0000:ffff:"))

    def _start_hosts(self, names):
        verbs = {open(f"{path}/ibdev").read().strip(): os.path.basename(path)
                 for path in glob.glob("/sys/class/infiniband_verbs/uverbs*")}
        holders = []
        for index, host in enumerate(self.hosts):
            folder = f"/run/hosts/{index}"
            os.makedirs(f"{folder}/infiniband")
            write(f"{folder}/hosts", names)
            for node in ["rdma_cm", *(verbs[device["name"]] for device in host["devices"])]:
                number = os.stat(f"/dev/infiniband/{node}").st_rdev
                os.mknod(f"{folder}/infiniband/{node}", 0o666 | stat.S_IFCHR, number)
                os.chmod(f"{folder}/infiniband/{node}", 0o666)
            holders.append(subprocess.Popen(
                ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child",
                 "sh", "-c", HOST_INIT, "sh", host["name"], folder], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True))
        for host, holder in zip(self.hosts, holders):
            line = holder.stdout.readline().strip()
            if not line.isdigit():
                raise RuntimeError(f"{host['name']}: {line} {holder.stdout.read()}")
            self.pids.append(int(line))

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


class Commands:
    """Reads requests until the port closes; each command has a thread of its own."""

    def __init__(self, port, pids):
        self._port, self._pids = port, pids
        self._lock = threading.Lock()
        self._running = {}
        self._nsenter = shutil.which("nsenter")

    def send(self, message):
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._port, line):]

    def serve(self):
        rest = b""
        while True:
            data = os.read(self._port, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "signal" in request:
                    self._signal(request["id"], request["signal"])
                else:
                    self._start(request)

    def _start(self, request):
        argv = request["argv"]
        if request["host"] is not None:
            argv = [self._nsenter, f"--target={self._pids[request['host']]}", "--net", "--uts", "--ipc", "--mount", "--pid",
                    f"--wdns={request['cwd']}", "--", *argv]
        try:
            process = subprocess.Popen(argv, env=request["env"], cwd=request["cwd"] if request["host"] is None else "/",
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       start_new_session=True)
        except OSError as reason:
            self._say(request["id"], f"rdmalab: {reason}\n".encode())
            self.send({"id": request["id"], "status": 127, "timed_out": False})
            return
        self._running[request["id"]] = process
        threading.Thread(target=self._follow, args=(request["id"], process, request["timeout"]), daemon=True).start()

    def _follow(self, number, process, timeout):
        relay = threading.Thread(target=self._relay, args=(number, process.stdout.fileno()), daemon=True)
        relay.start()
        timed_out = False
        try:
            process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            self._signal(number, signal.SIGKILL)
            process.wait()
        relay.join(timeout=5)  # what the command started may still hold the pipe
        del self._running[number]
        self.send({"id": number, "status": process.returncode, "timed_out": timed_out})

    def _relay(self, number, descriptor):
        while data := os.read(descriptor, 1 << 15):
            self._say(number, data)

    def _say(self, number, data):
        self.send({"id": number, "output": base64.b64encode(data).decode()})

    # The group has the number of its first process, which is not reaped before it has left `_running`.
    def _signal(self, number, which):
        process = self._running.get(number)
        if process is not None and process.returncode is None:
            os.killpg(process.pid, which)


def main():
    with open("/run/rdmalab/config.json") as file:
        hosts = Hosts(json.load(file))
    wait_for("there is a port", lambda: glob.glob("/dev/vport*p*"))
    commands = Commands(os.open(glob.glob("/dev/vport*p*")[0], os.O_RDWR), hosts.pids)
    commands.send({"ready": True})
    commands.serve()


try:
    main()
except Exception as failure:
    print(f"rdmalab: {failure}", file=sys.stderr, flush=True)
    raise
finally:
    write("/proc/sysrq-trigger", "b")  # -no-reboot makes this the end
