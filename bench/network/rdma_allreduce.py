# SPDX-License-Identifier: Apache-2.0
"""Allreduce of Treering and its peers in an RdmaLab: Open MPI and MPICH over UCX, gloo over verbs.

A library is started for each round, and measures all sizes (bench/peers/measure.h: the time of the slowest rank).
"""
import os
import shutil

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE = 280
PORT = 5100
GID = "1"  # the IPv4 one
# About as long for each.
POINTS = {8: 100, 512: 100, 8 << 10: 60, 64 << 10: 30, 512 << 10: 10, 4 << 20: 4}


class Failed(Exception):
    pass


def points():
    return ["--points", ",".join(f"{size}:{calls}" for size, calls in POINTS.items()), "--in-place", "--deadline", str(DEADLINE)]


def ucx(transport):
    """UCX's variables on a host, as a script before a program. It finds the devices of all hosts, of which each may use its own, and
    checks their IPv4 GIDs wrongly."""
    if transport == "tcp":
        return "export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0; "
    return 'export UCX_TLS=rc_verbs,ud_verbs:aux,self UCX_NET_DEVICES="rxe${HOSTNAME#rdmahost}:1" UCX_UD_VERBS_ETH_DGID_CHECK=n; '


ENTER_FILES = """
if [ ! -e /sys/class/net/eth0 ]; then
  for pair in $NETLAB_PIDS; do
    if [ "${pair%%=*}" = "$HOSTNAME" ]; then exec nsenter "--target=${pair#*=}" --pid --mount "--wdns=$PWD" -- "$@"; fi
  done
fi
"""


class Library:
    """`run` measures all points once: {size: us}. `over`: what carries its messages."""

    def __init__(self, name, over, program, build):
        self.name, self.over, self.program = f"{name} ({over})", over, os.path.join(build, program)

    def missing(self):
        return None if os.path.exists(self.program) else f"{self.program} is not built"

    def figures(self, results):
        if any(result.status != 0 for result in results):
            raise Failed(f"{self.name}: " + "\n".join(result.output for result in results))
        rows = [line.split() for line in results[0].output.splitlines()]
        rows = [row for row in rows if len(row) == 4 and row[0].isdigit() and row[1].isdigit()]
        if [int(row[0]) for row in rows] != list(POINTS) or any(row[3] != "0" for row in rows):
            raise Failed(f"{self.name}: wrong values, or not all sizes: {results[0].output}")
        return {int(row[0]): float(row[2]) for row in rows}


class Treering(Library):
    """With default settings, or (`copied`) without registering buffers that are used again, which may be much of what so few calls of
    a size take (docs/rdma.md)."""

    def __init__(self, over, build, copied=False):
        super().__init__("treering, copied" if copied else "treering", over, "bench/network/treering_rank", build)
        self.settings = {"TREERING_WATCH_BUFFERS": "0"} if copied else {}
        self.script = ucx("tcp") + 'exec "$@"' if over == "ucx" else 'exec "$@"'

    def run(self, lab, folder):
        env = {**self.settings, "TREERING_TRANSPORTS": self.over, "TREERING_TIMEOUT": str(DEADLINE),
               "WORLD_SIZE": str(lab.hosts), "LOCAL_RANK": "0", "MASTER_ADDR": lab.address(0), "MASTER_PORT": str(PORT)}
        started = [lab.start(host, ["bash", "-c", self.script, "-", self.program, *points()], DEADLINE, {**env, "RANK": str(host)})
                   for host in range(lab.hosts)]
        return self.figures([command.wait() for command in started])


class Gloo(Library):
    def __init__(self, build):
        super().__init__("gloo", "verbs", "bench/peers/gloo_ibverbs_driver", build)

    def run(self, lab, folder):
        os.mkdir(folder)
        started = [lab.start(host, [self.program, str(host), str(lab.hosts), folder, lab.device_name(host), GID, *points()], DEADLINE)
                   for host in range(lab.hosts)]
        return self.figures([command.wait() for command in started])


class Mpi(Library):
    """mpirun runs beside the hosts, with the network and the name of the first one, and enters the others. The ranks that it starts
    itself enter their host's files, for what /sys says of its network."""

    def __init__(self, mpi, over, build):
        super().__init__(mpi, over, f"bench/peers/mpi_driver_{mpi}", build)
        self.mpi, self.launcher = mpi, f"mpirun.{mpi}"

    def missing(self):
        if not shutil.which(self.launcher):
            return f"{self.launcher} not found (list \"peers\" of tools/packages)"
        return super().missing()

    def run(self, lab, folder):
        pids = " ".join(f"{name}={lab.holder_pid(host)}" for host, name in enumerate(lab.names))
        transport = "tcp" if self.over.endswith("tcp") else "verbs"
        program = ["bash", "-c", f'HOSTNAME=$(uname -n); {ucx(transport)} {ENTER_FILES} exec "$@"', "-", self.program, *points()]
        agent = os.path.join(HERE, "enter_host")
        if self.mpi == "openmpi":
            options = {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1", "pml": "ucx", "btl": "^openib",
                       "osc": "^ucx", "oob_tcp_if_include": "eth0", "mpi_yield_when_idle": "1", "orte_abort_print_stack": "0",
                       "pml_ucx_tls": "any", "pml_ucx_devices": "any"}
            command = [self.launcher, "--allow-run-as-root", "--bind-to", "none", "--host", ",".join(lab.names), "-np",
                       str(lab.hosts)]
            for key, value in options.items():
                command += ["--mca", key, value]
        else:
            command = [self.launcher, "-launcher", "rsh", "-launcher-exec", agent, "-hosts", ",".join(lab.names), "-iface", "eth0",
                       "-n", str(lab.hosts)]
        inside = ["nsenter", f"--target={lab.holder_pid(0)}", "--net", "--uts", "--"]
        return self.figures([lab.start(None, [*inside, *command, *program], DEADLINE, {"NETLAB_PIDS": pids}).wait()])


def over_verbs(build):
    return [Treering("verbs", build), Treering("verbs", build, copied=True), Mpi("openmpi", "UCX, verbs", build), Mpi("mpich", "UCX, verbs", build), Gloo(build)]


def over_tcp(build):
    return [Treering("tcp", build), Treering("ucx", build), Mpi("openmpi", "UCX, tcp", build), Mpi("mpich", "UCX, tcp", build)]
