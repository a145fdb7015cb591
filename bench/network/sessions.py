# SPDX-License-Identifier: Apache-2.0
"""The libraries, started once on the hosts of a Lab and then asked point by point, so that they can take turns.

        bench/netlab                 rank 0 (host 0)        rank 1 (host 1) ...
          "point 8 1000"  -- pipe --> measures  <-- the library's own network --> measures
               time, wrong  <-- stdout --'

A Session is one library on one placement of ranks. Its ranks sleep in read() while another library is measured. A library
that fails or passes its deadline is ended, and its Session stays failed.
"""
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

from comparison.libraries import MeasurementFailed, cores, end, library_path
from comparison.report import BEFORE

HERE = os.path.dirname(os.path.abspath(__file__))


class Session:
    """`places[rank]` is the rank's host. `ask` gives (time in us, wrong values) of a command."""
    name = None
    start_s = 90

    def __init__(self, lab, places, settings):
        self.lab, self.places, self.settings = lab, places, settings
        self.processes, self.pipes, self.failed = [], [], None
        self._text = b""

    def start(self):
        self._folder = tempfile.TemporaryDirectory(prefix="netlab-bench-")
        self.folder = self._folder.name
        for rank in range(len(self.places)):
            path = os.path.join(self.folder, str(rank))
            os.mkfifo(path)
            self.pipes.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        self._errors = open(os.path.join(self.folder, "errors"), "w+b")
        try:
            self.launch()
            self.ask("point 8 1", self.start_s)
        except BaseException:
            self.stop()
            raise

    def popen(self, host, argv, env=None, output=False):
        process = self.lab.popen(host, argv, {"OMP_NUM_THREADS": "1", **(env or {})}, stderr=self._errors,
                                 stdout=subprocess.PIPE if output else self._errors)
        self.processes.append(process)
        return process

    def ask(self, command, deadline_s=None):
        for pipe in self.pipes:
            os.write(pipe, command.encode() + b"\n")
        until = time.monotonic() + (deadline_s or self.settings.deadline)
        while True:
            fields = self.line(until).split()
            if len(fields) == 4 and fields[0].isdigit() and fields[1].isdigit():
                return float(fields[2]), int(fields[3])

    def line(self, until):
        """The next line of rank 0."""
        while b"\n" not in self._text:
            stdout = self.processes[0].stdout
            ready, _, _ = select.select([stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise MeasurementFailed("no result within the deadline" + self._last_errors())
            data = os.read(stdout.fileno(), 65536)
            if not data:
                raise MeasurementFailed("it ended" + self._last_errors())
            self._text += data
        line, self._text = self._text.split(b"\n", 1)
        return line.decode(errors="replace")

    def _last_errors(self):
        self._errors.flush()
        with open(self._errors.name, "rb") as file:
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return ": " + " | ".join(lines[-5:]) if lines else ""

    def stop(self):
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = []
        until = time.monotonic() + (0.1 if self.failed else 10)
        for process in self.processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                end(process)
        self._errors.close()
        self._folder.cleanup()


class Treering(Session):
    """`name` is "treering/" and the type on the wire."""
    program = ("bench", "network", "treering_rank")

    def __init__(self, lab, places, settings, wire="fp32", library=None):
        super().__init__(lab, places, settings)
        self.name = "treering/" + wire
        self.variables = library_path(library) | ({} if wire == "fp32" else {"TREERING_WIRE": wire})

    @classmethod
    def path(cls, settings):
        return os.path.join(settings.build, *cls.program)

    @classmethod
    def missing(cls, settings):
        program = cls.path(settings)
        return None if os.path.exists(program) else f"{program} is not built"

    def launch(self):
        program = self.path(self.settings)
        env = {"TREERING_RANKS": str(len(self.places)), "TREERING_TIMEOUT": str(self.settings.deadline), **self.variables,
               **self.settings.variables}
        for rank, host in enumerate(self.places):
            own = ["--make-id"] if rank == 0 else []
            arguments = ["--commands", self.folder, "--deadline", str(self.settings.deadline),
                         "--collective", self.settings.collective]
            self.popen(host, [program, *own, *arguments], {**env, "TREERING_RANK": str(rank)}, output=rank == 0)
            if rank == 0:
                env["TREERING_ID"] = self.line(time.monotonic() + self.start_s)


class Before(Treering):
    """The same program with an earlier library."""

    def __init__(self, lab, places, settings):
        super().__init__(lab, places, settings, library=settings.before)
        self.name += BEFORE


class Gloo(Session):
    name = "gloo"
    _pythons = {}

    @classmethod
    def python(cls, settings):
        """The interpreter that has torch: the one asked for, this one, or the one on the path."""
        chosen = settings.gloo_python
        if chosen not in cls._pythons:
            cls._pythons[chosen] = None
            for python in [chosen] if chosen else [sys.executable, shutil.which("python3"), shutil.which("python")]:
                if python and shutil.which(python) and subprocess.run(
                        [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"],
                        stderr=subprocess.DEVNULL).returncode == 0:
                    cls._pythons[chosen] = python
                    break
        return cls._pythons[chosen]

    @classmethod
    def missing(cls, settings):
        if settings.collective != "allreduce":
            return "measured for allreduce alone"
        if cls.python(settings):
            return None
        return f"{settings.gloo_python or 'python3'} has no torch module (--gloo-python names another interpreter)"

    def launch(self):
        interfaces = ",".join(f"eth{nic}" for nic in range(self.lab.nics))
        for rank, host in enumerate(self.places):
            self.popen(host, [self.python(self.settings), os.path.join(HERE, "gloo_rank.py"), str(rank),
                              str(len(self.places)), self.folder],
                       {"GLOO_SOCKET_IFNAME": interfaces}, output=rank == 0)


class OpenMpi(Session):
    name = "openmpi"

    @classmethod
    def missing(cls, settings):
        for tool in ("mpirun.openmpi", "orted"):
            if not shutil.which(tool):
                return f"{tool} not found (Debian package openmpi-bin)"
        driver = os.path.join(settings.build, "bench", "peers", "mpi_driver_openmpi")
        return None if os.path.exists(driver) else f"{driver} is not built"

    def launch(self):
        """TCP between hosts, shared memory within: the seq mapper gives rank i the i-th line's host."""
        hosts = os.path.join(self.folder, "hosts")
        with open(hosts, "w") as file:
            file.writelines(f"{self.lab.names[host]}\n" for host in self.places)
        networks = ",".join(f"10.77.{nic}.0/24" for nic in range(self.lab.nics))
        options = {"plm": "rsh", "plm_rsh_agent": os.path.join(HERE, "enter_host"), "plm_rsh_no_tree_spawn": "1",
                   "rmaps": "seq", "pml": "ob1", "btl": "tcp,vader,self", "btl_tcp_if_include": networks,
                   "oob_tcp_if_include": "10.77.0.0/24", "mpi_yield_when_idle": str(int(len(self.places) > len(cores()))),
                   "orte_abort_print_stack": "0"}
        command = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "--hostfile", hosts, "-np",
                   str(len(self.places))]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        for key, value in options.items():
            command += ["--mca", key, value]
        driver = os.path.join(self.settings.build, "bench", "peers", "mpi_driver_openmpi")
        pids = " ".join(f"{name}={self.lab.holder_pid(host)}" for host, name in enumerate(self.lab.names))
        self.popen(self.places[0], [*command, driver, "--commands", self.folder, "--deadline", str(self.settings.deadline),
                                     "--collective", self.settings.collective],
                   {"NETLAB_PIDS": pids}, output=True)


LIBRARIES = {"treering": Treering, "before": Before, "gloo": Gloo, "openmpi": OpenMpi}


class Sessions:
    """The chosen libraries on one placement, for a `with` statement; those that are missing or fail to start are named."""

    def __init__(self, lab, places, settings, more=()):
        self.sessions = []
        self.settings = settings
        wanted = [LIBRARIES[name] for name in settings.libraries]
        makers = [maker for maker in wanted if not maker.missing(settings)]
        candidates = [maker(lab, places, settings) for maker in makers]
        candidates += [Treering(lab, places, settings, wire) for wire in more if Treering in makers]
        try:
            for session in candidates:
                try:
                    session.start()
                    self.sessions.append(session)
                except MeasurementFailed as error:
                    settings.report_failure(session.name, "start", error)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for session in self.sessions:
            session.stop()
        self.sessions = []

    def ask(self, session, command):
        """(time, wrong), or None when the session has failed, now or before."""
        if session.failed:
            return None
        try:
            return session.ask(command)
        except MeasurementFailed as error:
            session.failed = str(error)
            for process in session.processes:
                end(process)
            self.settings.report_failure(session.name, command, error)
            return None
