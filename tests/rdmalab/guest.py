# SPDX-License-Identifier: Apache-2.0
"""What runs inside of an RdmaLab's guest, as its process 1: makes the hosts, then runs the commands that rdmalab.py sends.

Requests and answers are lines of JSON on a virtio port. When it closes, or this program fails, the guest ends.
    {"id": 1, "host": 0, "argv": [...], "env": {...}, "cwd": "...", "timeout": 60}   host null: the guest itself
    {"id": 1, "signal": 9}                                                     to all processes of that command
    {"id": 1, "input": "text"}                                                 for its standard input, where its request has "input": true
    <- {"ready": true, "pids": [...]}, {"id": 1, "output": "BASE64"}..., {"id": 1, "status": 0, "timed_out": false}
"""

import base64
import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from hosts import Hosts, wait_for, write
REAP_SECONDS = 30
# What one process of a group must not be able to escape by a fork, and what stops and continues nsenter with its child.
ATOMIC = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)


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
                elif "argv" not in request:
                    self._write(request["id"], request["input"])
                else:
                    self._start(request)

    def _start(self, request):
        argv = request["argv"]
        if request["host"] is not None:
            argv = [self._nsenter, f"--target={self._pids[request['host']]}", "--net", "--uts", "--ipc", "--mount", "--pid",
                    f"--wdns={request['cwd']}", "--", *argv]
        try:
            process = subprocess.Popen(argv, env=request["env"], cwd=request["cwd"] if request["host"] is None else "/",
                                       stdin=subprocess.PIPE if request.get("input") else subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       start_new_session=True)
        except OSError as reason:
            self._say(request["id"], f"rdmalab: {reason}\n".encode())
            self.send({"id": request["id"], "status": 127, "timed_out": False})
            return
        self._running[request["id"]] = process
        threading.Thread(target=self._follow, args=(request["id"], process, request["timeout"]), daemon=True).start()

    def _write(self, number, text):
        process = self._running.get(number)
        if process is not None:
            with contextlib.suppress(OSError):  # it has ended
                os.write(process.stdin.fileno(), text.encode())

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
        if process.returncode == -signal.SIGKILL:
            self._reap(process.pid)
        relay.join(timeout=5)  # what the command started may still hold the pipe
        del self._running[number]
        if process.stdin is not None:
            process.stdin.close()
        self.send({"id": number, "status": process.returncode, "timed_out": timed_out})

    def _relay(self, number, descriptor):
        while data := os.read(descriptor, 1 << 15):
            self._say(number, data)

    def _say(self, number, data):
        self.send({"id": number, "output": base64.b64encode(data).decode()})

    # The group has the number of its first process, nsenter, which waits for the program, and passes on how it ended. nsenter
    # would die of what the program may handle.
    def _signal(self, number, which):
        process = self._running.get(number)
        if process is None or process.returncode is not None:
            return
        others = [] if which in ATOMIC else [pid for pid in self._group(process.pid) if pid != process.pid]
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
        if not others:
            os.killpg(process.pid, which)

    # Where nsenter was killed, the program is a child of this process.
    def _reap(self, group):
        deadline = time.monotonic() + REAP_SECONDS
        while (left := self._group(group)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)

    @staticmethod
    def _group(number):
        found = []
        for entry in os.listdir("/proc"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                if os.getpgid(int(entry)) == number:
                    found.append(int(entry))
        return found


def main():
    with open("/run/rdmalab/config.json") as file:
        hosts = Hosts(json.load(file))
    wait_for("there is a port", lambda: glob.glob("/dev/vport*p*"))
    commands = Commands(os.open(glob.glob("/dev/vport*p*")[0], os.O_RDWR), hosts.pids)
    commands.send({"ready": True, "pids": hosts.pids})
    commands.serve()


try:
    main()
except Exception as failure:
    print(f"rdmalab: {failure}", file=sys.stderr, flush=True)
    raise
finally:
    write("/proc/sysrq-trigger", "b")  # -no-reboot makes this the end
