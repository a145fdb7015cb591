# SPDX-License-Identifier: Apache-2.0
"""The libraries that are compared: how each is found, started on N processes, and read.

Every library is one class with `name`, `missing()` (why it cannot run, or None) and `measure()` (one batch of sizes:
{bytes: time in us}). A library that hangs is ended by its process id after the deadline.
"""
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from .report import BEFORE

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class MeasurementFailed(Exception):
    pass


def collective_names():
    """The names that the drivers know: those of measure.h."""
    with open(os.path.join(HERE, "measure.h"), encoding="utf-8") as file:
        names = re.search(r"kCollectiveNames\[\] = \{([^}]*)\}", file.read())[1]
    return re.findall(r'"([^"]+)"', names)


def cores():
    return sorted(os.sched_getaffinity(0))


def end(process):
    """Asks first, so that mpirun can end its ranks; then insists."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                pass


LIBRARY = "libtreering.so.0"  # what programs ask the loader for
_linked_folders = {}


def folder_of_library(folder):
    """Where the loader finds the library of `folder`, which may be there as libtreering.so alone; None where it is not."""
    if os.path.exists(os.path.join(folder, LIBRARY)):
        return os.path.abspath(folder)
    other = os.path.abspath(os.path.join(folder, "libtreering.so"))
    if not os.path.exists(other):
        return None
    if other not in _linked_folders:
        _linked_folders[other] = tempfile.TemporaryDirectory(prefix="treering-before-")
        os.symlink(other, os.path.join(_linked_folders[other].name, LIBRARY))
    return _linked_folders[other].name


def library_path(folder):
    """Variables that let a program take the library from that folder."""
    if not folder:
        return {}
    found = folder_of_library(folder) or os.path.abspath(folder)
    return {"LD_LIBRARY_PATH": ":".join(filter(None, [found, os.environ.get("LD_LIBRARY_PATH")]))}


def loaded_library(program, variables):
    """The file that the loader takes for the library; None where it takes none."""
    done = subprocess.run([program], env={**os.environ, **variables, "LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL)
    for line in done.stdout.splitlines():
        words = line.split()
        if words[:2] == [LIBRARY, "=>"] and words[2] != "not":
            return os.path.realpath(words[2])
    return None


def why_no_library(folder, program):
    """Why `program` would not take the library from `folder`, but this build's without a word; None: it takes it."""
    found = folder_of_library(folder)
    if found is None:
        return f"there is no {LIBRARY} and no libtreering.so in {folder}; give the folder of an earlier build's library (BUILD/src)"
    if not os.path.exists(program):
        return None  # it is left out, and why is said
    wanted, loaded = os.path.realpath(os.path.join(found, LIBRARY)), loaded_library(program, library_path(folder))
    if loaded == wanted:
        return None
    return f"{program} does not load {wanted}, but {loaded or 'no ' + LIBRARY + ': was it linked with a static library?'}"


def run_all(commands, deadline_s, variables=None):
    """Starts the commands together and waits for all; returns what the first one printed."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", **(variables or {}))
    processes = []
    try:
        for command in commands:
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                              stderr=subprocess.PIPE, text=True, env=environment))
        outputs = [process.communicate(timeout=deadline_s) for process in processes]
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"no result within {deadline_s} s") from None
    finally:
        for process in processes:
            end(process)
    for process, (_, errors) in zip(processes, outputs):
        if process.returncode != 0:
            lines = errors.strip().splitlines() or ["(it printed nothing)"]
            raise MeasurementFailed(f"exit status {process.returncode}: " + " | ".join(lines[-5:]))
    return outputs[0][0]


def parse(output, points):
    """Lines `bytes iterations time_us wrong`; anything else that a library prints is passed over."""
    times = {}
    for line in output.splitlines():
        fields = line.split()
        if len(fields) != 4 or not fields[0].isdigit():
            continue
        if int(fields[3]) != 0:
            raise MeasurementFailed(f"{fields[3]} wrong values at {fields[0]} bytes")
        times[int(fields[0])] = float(fields[2])
    lost = [size for size, _ in points if size not in times]
    if lost:
        raise MeasurementFailed(f"no time for {lost} bytes")
    return times


def point_list(points):
    return ",".join(f"{size}:{iterations}" for size, iterations in points)


class Library:
    collective = "allreduce"
    variables = {}

    def __init__(self, driver_dir, in_place=False, deadline_s=120):
        self.driver_dir, self.in_place, self.deadline_s = driver_dir, in_place, deadline_s

    def arguments(self, points):
        place = ["--in-place"] if self.in_place else []
        return ["--collective", self.collective, "--points", point_list(points), "--deadline", str(self.deadline_s)] + place

    def measure(self, ranks, points):
        return parse(run_all(self.commands(ranks, points), self.deadline_s, self.variables), points)


class Mpi(Library):
    compiled = None
    launcher = None
    package = None

    def missing(self):
        if not shutil.which(self.launcher):
            return f"{self.launcher} not found (Debian package {self.package})"
        driver = os.path.join(self.driver_dir, self.compiled)
        return None if os.path.exists(driver) else f"{driver} is not built"

    def commands(self, ranks, points):
        driver = os.path.join(self.driver_dir, self.compiled)
        return [[self.launcher] + self.binding(ranks) + ["-np", str(ranks), driver] + self.arguments(points)]


class OpenMpi(Mpi):
    name, launcher, package, compiled = "openmpi", "mpirun.openmpi", "openmpi-bin", "mpi_driver_openmpi"

    def binding(self, ranks):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        if ranks > len(cores()):
            return root + ["--oversubscribe", "--bind-to", "none"]
        # Slots are cores here; some machines have a hostfile or a virtual CPU count that says fewer.
        return root + ["--oversubscribe", "--bind-to", "core", "--mca", "mpi_yield_when_idle", "0"]


class Mpich(Mpi):
    name, launcher, package, compiled = "mpich", "mpirun.mpich", "mpich", "mpi_driver_mpich"

    def binding(self, ranks):
        return ["-bind-to", "none" if ranks > len(cores()) else "core"]


class Gloo(Library):
    name = "gloo"

    def missing(self):
        if self.collective != "allreduce":
            return "measured for allreduce alone"
        return None if importlib.util.find_spec("torch") else "python3 has no torch module"

    def measure(self, ranks, points):
        with tempfile.TemporaryDirectory() as folder:
            self.meeting_file = os.path.join(folder, "meeting")
            return super().measure(ranks, points)

    def commands(self, ranks, points):
        own = cores()
        pinned = ranks <= len(own)
        return [[sys.executable, os.path.join(HERE, "gloo_driver.py"), str(rank), str(ranks), self.meeting_file,
                 str(own[rank]) if pinned else "-1", point_list(points), "1" if self.in_place else "0"]
                for rank in range(ranks)]


class Treering(Library):
    """`before`: the folder of an earlier library, which the same driver loads."""

    def __init__(self, buffers, *args, before=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.buffers, self.variables = buffers, library_path(before)
        self.name = "treering/" + buffers + (BEFORE if before else "")

    @staticmethod
    def driver(driver_dir):
        return os.path.join(driver_dir, "treering_driver")

    def missing(self):
        driver = self.driver(self.driver_dir)
        return None if os.path.exists(driver) else f"{driver} is not built"

    def commands(self, ranks, points):
        return [[self.driver(self.driver_dir), "--ranks", str(ranks), "--buffers", self.buffers] +
                self.arguments(points)]
