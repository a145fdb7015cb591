# SPDX-License-Identifier: Apache-2.0
"""How the guest of an RdmaLab is started, and how it ends.

As a program, `qemu.py REQUESTS ANSWERS` is the parent of QEMU, whose virtio port reads and writes these two descriptors: it makes
the guest's folder, prints its path, reads QEMU's command line as JSON, and starts it. When its input or QEMU ends, it ends QEMU
and removes the folder. Its input ends when the lab closes, or the process of the lab dies in any way.
"""

import glob
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile

from kernel import Unavailable, busybox

PROGRAM = "qemu-system-x86_64"
PROCESSORS, MEGABYTES = 2, 1024
# Tests of the kernel's own parts are left out of the boot, and a guest that gets no processor time for seconds is no fault.
ARGUMENTS = ("console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check cryptomgr.notests nowatchdog "
             "random.trust_cpu=on rcupdate.rcu_cpu_stall_suppress=1")


def require():
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guest has the machine's programs, and is for x86_64 alone, not {platform.machine()}")
    for tool, package in ((PROGRAM, "qemu-system-x86"), ("ip", "iproute2"), ("tc", "iproute2"), ("rdma", "iproute2"),
                          ("unshare", "util-linux"), ("nsenter", "util-linux"), ("setpriv", "util-linux"), ("mount", "mount"),
                          ("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        # What the guest's root runs need not be in the path of a user.
        where = os.environ.get("PATH", "") + (":/usr/sbin:/sbin" if package == "iproute2" else "")
        if shutil.which(tool, path=where) is None:
            raise Unavailable(f'the program "{tool}" is not installed (package {package}; list "test" of tools/packages)')
    busybox()
    if not glob.glob("/etc/libibverbs.d/rxe.driver"):
        raise Unavailable('libibverbs has no driver of soft-RoCE (package ibverbs-providers; list "test" of tools/packages)')


def command_line(image, initramfs, folder, writable):
    shared = ["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
              "-virtfs", f"local,path={_escaped(folder)},mount_tag=run,security_model=none"]
    for tag, path in writable:
        shared += ["-virtfs", f"local,path={_escaped(path)},mount_tag={tag},security_model=none,multidevs=remap"]
    return [PROGRAM, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(PROCESSORS), "-m", str(MEGABYTES), "-nodefaults",
            "-no-user-config", "-nographic", "-no-reboot", "-kernel", str(image), "-initrd", str(initramfs),
            "-append", ARGUMENTS, "-monitor", "none", "-serial", f"file:{_escaped(folder)}/console.log", *shared,
            "-device", "virtio-serial-pci", "-chardev", "stdio,id=port,signal=off", "-device", "virtserialport,chardev=port"]


def _escaped(path):
    return path.replace(",", ",,")


def _keep(requests, answers):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = tempfile.mkdtemp(prefix="rdmalab-")
    process = None
    try:
        os.mkdir(os.path.join(folder, "results"))
        print(folder, flush=True)
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            return 1
        with open(os.path.join(folder, "qemu.log"), "wb") as log:
            # Should this process be killed, the kernel ends QEMU.
            process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *json.loads(line)],
                                       stdin=requests, stdout=answers, stderr=log)
        os.close(requests)
        os.close(answers)
        ends = [os.pidfd_open(process.pid), sys.stdin.fileno()]
        while sys.stdin.fileno() not in select.select(ends, [], [])[0]:
            ends = ends[1:]  # QEMU has ended; its last words stay until the lab has read them
        return 0
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(_keep(*map(int, sys.argv[1:])))
