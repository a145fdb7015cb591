#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trCommInitFromEnvironment() under real launchers, and what it says when there is none.

usage: launch_test.py PROGRAM LIBRARY [open_mpi|mpich|mpich_beside_mpi|slurm|torchrun]     PROGRAM: docs/examples/from_environment

With a launcher, it is started; exit status 77 where it is not installed (tools/install-packages launchers; PyTorch: where
$TREERING_TEST_PYTHON, or this interpreter, has it). Slurm runs as a private controller and daemon on loopback, in a temporary
directory. Without, all that needs no launcher.
"""
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from attempts import InThreeAttempts  # noqa: E402
from seed import test_seed  # noqa: E402

PROGRAM, LIBRARY = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
RANKS = 3
SKIP = 77
PORTS = random.Random(f"{test_seed()} {sys.argv[3:]}")  # tests of several launchers run side by side
TORCH_PYTHON = os.environ.get("TREERING_TEST_PYTHON", sys.executable)
DEADLINE = 120
LAUNCHERS = ("TREERING_", "PMI", "OMPI", "SLURM", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "TORCHELASTIC_")
INCLUDE = os.path.join(os.path.dirname(__file__), "..", "..", "include")
EXAMPLES = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "examples")
SCRIPT = (os.path.join(EXAMPLES, "start_ranks.sh"), os.path.join(os.path.dirname(PROGRAM), "example_unique_id"))
BESIDE_MPI = """
#include <mpi.h>
#include <stdio.h>
#include <treering/treering.h>
int main(int argc, char** argv) {
  int rank, ranks;
  trComm_t comm = NULL;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (trCommInitFromEnvironment(&comm, NULL) != trSuccess) printf("%s\\n", trGetLastError(NULL));
  trUniqueId id;
  if (rank == 0) trGetUniqueId(&id);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  float value = 1 + rank;
  if (trCommInitRankConfig(&comm, ranks, id, rank, NULL) == trSuccess &&
      trAllReduce(&value, &value, 1, trFloat32, trSum, comm, NULL) == trSuccess)
    printf("sum %g\\n", value);
  trCommDestroy(comm);
  return MPI_Finalize();
}
"""
BESIDE_PRIVATE_MPI = f"""
import ctypes
mpi, treering, comm = ctypes.CDLL("libmpich.so.12"), ctypes.CDLL("{LIBRARY}"), ctypes.c_void_p()
treering.trGetLastError.restype = ctypes.c_char_p
mpi.MPI_Init(None, None)
if treering.trCommInitFromEnvironment(ctypes.byref(comm), None) != 0:
    print(treering.trGetLastError(None).decode())
mpi.MPI_Finalize()
"""


def clean_environment(**more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
    return {**kept, "TREERING_TIMEOUT": "60", **more}


def run(command, **variables):
    return subprocess.run(command, env=clean_environment(**variables), capture_output=True, text=True,
                          timeout=DEADLINE, stdin=subprocess.DEVNULL)


def needs(*programs):
    missing = [program for program in programs if shutil.which(program) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


def free_ports():
    """Two neighbouring ports that are free, below those that the kernel gives to others meanwhile."""
    while True:
        first = PORTS.randrange(15000, 32000)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("0.0.0.0", first))
                two.bind(("0.0.0.0", first + 1))
                return first, first + 1
            except OSError:
                continue


class Launchers(unittest.TestCase):
    def expect_all_ranks(self, done):
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
        self.assertEqual(lines, [f"rank {rank} of {RANKS}: ok" for rank in range(RANKS)], done.stdout)

    @needs("mpirun.openmpi")
    def test_open_mpi(self):
        self.expect_all_ranks(run(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS), PROGRAM]))

    @needs("mpiexec.hydra")
    def test_mpich(self):
        self.expect_all_ranks(run(["mpiexec.hydra", "-n", str(RANKS), PROGRAM]))

    @needs("mpiexec.hydra", "mpicc.mpich")
    def test_mpich_beside_mpi(self):
        """Both would talk over the same connection; a broadcast id is the way."""
        headers = run(["mpicc.mpich", "-E", "-x", "c", "-include", "mpi.h", os.devnull])
        if headers.returncode != 0:  # Debian's package of programs has the compiler's wrapper without them
            self.skipTest("MPICH's headers are not installed (libmpich-dev)")
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "both.c"), os.path.join(folder, "both")
            with open(source, "w", encoding="utf-8") as file:
                file.write(BESIDE_MPI)
            library = os.path.dirname(LIBRARY)
            build = run(["mpicc.mpich", "-I", INCLUDE, source, "-o", program, "-L", library, f"-Wl,-rpath,{library}", "-ltreering"])
            self.assertEqual(build.returncode, 0, build.stderr)
            done = run(["mpiexec.hydra", "-n", "2", program])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("broadcast it with MPI_Bcast()"), 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("sum 3"), 2, done.stdout + done.stderr)
        done = run(["mpiexec.hydra", "-n", "2", sys.executable, "-c", BESIDE_PRIVATE_MPI])  # as mpi4py loads it
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("broadcast it with MPI_Bcast()"), 2, done.stdout + done.stderr)

    @needs("slurmctld", "slurmd", "srun")
    @unittest.skipIf(os.geteuid() != 0, "slurmd wants to be root")
    def test_slurm(self):
        with Slurm() as slurm:
            for plugin in ("pmi2", "pmix"):
                with self.subTest(plugin):
                    done = slurm.srun(f"--mpi={plugin}")
                    if "Couldn't find the specified plugin" in done.stderr:
                        print(f"srun --mpi={plugin}: not installed")
                        continue
                    self.expect_all_ranks(done)
            none = slurm.srun("--mpi=none")
            self.assertNotEqual(none.returncode, 0)
            self.assertIn("start them with srun --mpi=pmi2 or --mpi=pmix", none.stderr)

    def test_torchrun(self):
        """The agents of two nodes, which keep PyTorch's own store at the master's port."""
        if run([TORCH_PYTHON, "-c", "import torch.distributed"]).returncode != 0:
            self.skipTest(f"{TORCH_PYTHON} cannot import torch")
        starts = "from torch.distributed.elastic.multiprocessing import Std; assert Std.from_str('0') is not None"
        if run([TORCH_PYTHON, "-c", starts]).returncode != 0:  # tests/gpu/torch/run.py says why
            self.skipTest(f"torchrun of {TORCH_PYTHON} does not work with its version of Python")
        port, _ = free_ports()
        agents = [subprocess.Popen([TORCH_PYTHON, "-m", "torch.distributed.run", "--no_python", "--nnodes", "2", "--node_rank", str(node),
                                    "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", str(port), PROGRAM],
                                   env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL) for node in range(2)]
        lines = []
        try:
            for agent in agents:
                out, error = agent.communicate(timeout=DEADLINE)
                self.assertEqual(agent.returncode, 0, error)
                lines += [line for line in out.splitlines() if line.startswith("rank ")]
        finally:
            for agent in agents:
                agent.terminate()
        self.assertEqual(sorted(lines), [f"rank {rank} of 4: ok" for rank in range(4)])


CALL_TWICE = """
import ctypes, os, sys
library, comm = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
library.trGetLastError.restype = ctypes.c_void_p
for address in (os.environ["MASTER_ADDR"], "127.0.0.1"):
    os.environ["MASTER_ADDR"] = address
    print(library.trCommInitFromEnvironment(ctypes.byref(comm), None) == 0)
    print(ctypes.string_at(library.trGetLastError(None)), file=sys.stderr)
"""


def has_name(name):
    """A bare system may have no /etc/hosts."""
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def wait_until_it_dials(process):
    """A thread of the library does so."""
    until = time.monotonic() + DEADLINE
    while process.poll() is None and len(os.listdir(f"/proc/{process.pid}/task")) < 2 and time.monotonic() < until:
        time.sleep(0.01)


class TorchRun(unittest.TestCase):
    """The variables that torchrun sets; PyTorch's own store is not needed."""

    def start(self, rank, port, address="127.0.0.1", ranks=RANKS, **more):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": address, "MASTER_PORT": str(port),
                     "TORCHELASTIC_RUN_ID": "a run"}
        return subprocess.Popen([PROGRAM], env=clean_environment(**variables, **more), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def test_ranks_meet_at_the_port_after_the_masters(self):
        port, _ = free_ports()
        for address in ["127.0.0.1"] + ["localhost"] * has_name("localhost"):
            # Rank 0 comes last: the others wait for it.
            processes = [self.start(rank, port, address, TREERING_DEBUG="INFO") for rank in (2, 1)]
            for process in processes:
                wait_until_it_dials(process)
            processes.append(self.start(0, port, address, TREERING_DEBUG="INFO"))
            told = ""
            for rank, process in zip((2, 1, 0), processes):
                out, error = process.communicate(timeout=DEADLINE)
                self.assertEqual(out, f"rank {rank} of {RANKS}: ok\n", error)
                told += error
            self.assertRegex(told, "communicator of 3 ranks on .* x shared-memory")

    @unittest.skipIf(os.geteuid() != 0, "needs root, to start a rank as another user")
    def test_another_user_gets_no_memory(self):
        """A secret that everybody can guess lets him take part, as over the network."""
        port, _ = free_ports()
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TREERING_DEBUG": "INFO"}
        with tempfile.TemporaryDirectory() as folder:  # the build may be where the user may not look
            os.chmod(folder, 0o755)
            program, library = (shutil.copy(file, folder) for file in (PROGRAM, os.path.realpath(LIBRARY)))
            os.symlink(library, os.path.join(folder, "libtreering.so.0"))
            processes = [subprocess.Popen([program], env=clean_environment(RANK=str(rank), LD_LIBRARY_PATH=folder, **variables),
                                          user=user, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                         for rank, user in ((0, None), (1, 65534))]
            told = ""
            for rank, process in enumerate(processes):
                out, error = process.communicate(timeout=DEADLINE)
                self.assertEqual(out, f"rank {rank} of 2: ok\n", error)
                told += error
        self.assertRegex(told, "communicator of 2 ranks on .*")
        self.assertNotIn("x shared-memory", told)

    def test_who_knows_another_secret_is_kept_out(self):
        port, _ = free_ports()
        one = self.start(0, port, ranks=2, TREERING_SECRET="one", TREERING_TIMEOUT="4")
        other = self.start(1, port, ranks=2, TREERING_SECRET="other", TREERING_TIMEOUT="4")
        for process in (one, other):
            _, error = process.communicate(timeout=DEADLINE)
            self.assertEqual(process.returncode, 1, error)
        self.assertIn("another TREERING_SECRET", error)

    def test_a_call_that_fails_does_not_count(self):
        """One rank is mended and calls again, while the others wait in their first call."""
        port, _ = free_ports()
        first = self.start(0, port, ranks=2)
        done = run([sys.executable, "-c", CALL_TWICE, LIBRARY], RANK="1", WORLD_SIZE="2", MASTER_PORT=str(port),
                   TORCHELASTIC_RUN_ID="a run", MASTER_ADDR="no.such.host.invalid")
        self.assertEqual(done.stdout.split(), ["False", "True"], done.stderr)
        first.communicate(timeout=DEADLINE)  # rank 1 has left before the allreduce

    def test_wrong_values_are_named(self):
        _, error = self.start(0, 70000).communicate(timeout=DEADLINE)
        self.assertIn("MASTER_PORT is '70000'; give a number from 1 to 65534", error)
        _, error = self.start(0, 5000, "no.such.host.invalid").communicate(timeout=DEADLINE)
        self.assertIn("'no.such.host.invalid' is no host that can be found", error)
        port, _ = free_ports()
        with socket.socket() as other:
            other.bind(("0.0.0.0", port + 1))
            other.listen()
            _, error = self.start(0, port).communicate(timeout=DEADLINE)
        self.assertIn(f"no port of {port + 1} to {port + 1} can be listened on: Address already in use", error)
        self.assertIn("choose another MASTER_PORT", error)


class Pmix(unittest.TestCase):
    def test_errors_come_with_the_advice_that_fits(self):
        done = run([PROGRAM], PMIX_RANK="0")
        self.assertNotEqual(done.returncode, 0)
        if "this build has no PMIx" in done.stderr or "cannot be opened" in done.stderr:
            print(done.stderr.strip())
            return
        self.assertRegex(done.stderr, r"PMIx_Init fails: \S+ \(-25\)\. Without mpirun or srun --mpi=pmix unset PMIX_RANK; with")
        done = run([PROGRAM], PMIX_RANK="0", PMIX_MCA_gds="no-such-component")
        self.assertRegex(done.stderr, r"PMIx_Init fails: \S+ \(-2\)\. PMIx has printed the reason")
        self.assertNotIn("unset PMIX_RANK", done.stderr)


class Slurm:
    """A controller and one daemon of our own."""

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="treering-slurm-")
        name = socket.gethostname().split(".")[0]
        controller, daemon = free_ports()
        self.configuration = os.path.join(self.directory, "slurm.conf")
        with open(self.configuration, "w", encoding="ascii") as file:
            file.write(f"""ClusterName=treering
SlurmctldHost={name}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={self.directory}/state
SlurmdSpoolDir={self.directory}/spool
SlurmctldPidFile={self.directory}/slurmctld.pid
SlurmdPidFile={self.directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
NodeName={name} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
""")
        for folder in ("state", "spool"):
            os.mkdir(os.path.join(self.directory, folder))
        self.processes = []
        for program in ("slurmctld", "slurmd"):
            with open(os.path.join(self.directory, program + ".out"), "w", encoding="utf-8") as out:
                self.processes.append(subprocess.Popen([program, "-D", "-f", self.configuration], stdout=out,
                                                       stderr=out, env=clean_environment()))
        until = time.monotonic() + 60
        while "idle" not in run(["sinfo", "-h", "-o", "%t"], SLURM_CONF=self.configuration).stdout:
            if time.monotonic() > until:
                self.__exit__()
                raise AssertionError("the private Slurm did not come up within 60 s")
            time.sleep(0.1)
        return self

    def srun(self, plugin):
        return run(["srun", plugin, "-s", "-O", "-n", str(RANKS), PROGRAM], SLURM_CONF=self.configuration)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class FirstFailure(InThreeAttempts):
    def test_the_others_have_a_second_to_say_why(self):
        """They see it only once it has happened."""
        with tempfile.TemporaryDirectory() as folder:
            failed = os.path.join(folder, "failed")
            done = run([*SCRIPT, "3", "sh", "-c", 'if [ "$TREERING_RANK" = 1 ]; then : > "$0"; exit 3; fi;'
                        ' until [ -e "$0" ]; do sleep 0.01; done; sleep 0.2; echo told; exec sleep 60', failed])
        self.assertEqual((done.returncode, done.stdout), (3, "told\n" * 2), done.stderr)


class OwnVariables(unittest.TestCase):
    """The id is made here and given to the processes by hand, as a script would."""

    @classmethod
    def setUpClass(cls):
        cls.library = ctypes.CDLL(LIBRARY)

    def make_id(self):
        made = (ctypes.c_char * 128)()
        self.assertEqual(self.library.trGetUniqueId(made), 0)
        return bytes(made).hex()

    def start(self, rank, given, text=None, **more):
        return subprocess.Popen([PROGRAM], text=True, stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=clean_environment(TREERING_RANK=str(rank), TREERING_RANKS="2", TREERING_ID=given,
                                                      **more))

    def start_ranks(self, *command):
        return run([*SCRIPT, *command])

    def test_the_script_of_the_examples(self):
        done = self.start_ranks("3", PROGRAM)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"rank {rank} of 3: ok" for rank in range(3)])

    def test_the_script_ends_with_the_first_rank_that_fails(self):
        """The others would wait for it until their deadline."""
        done = self.start_ranks("3", "sh", "-c", '[ "$TREERING_RANK" != 1 ] || exit 3; exec "$0"', PROGRAM)
        self.assertEqual(done.returncode, 3, done.stderr)

    def test_the_script_ends_its_ranks_when_it_is_ended(self):
        script = subprocess.Popen([*SCRIPT, "2", "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE, text=True,
                                  env=clean_environment())
        for _ in range(2):
            script.stdout.readline()
        script.send_signal(signal.SIGTERM)
        self.assertEqual(script.wait(DEADLINE), 143)
        with script.stdout:
            self.assertEqual(script.stdout.read(), "")  # ends when the last rank has

    def test_the_script_says_how_it_is_used(self):
        for arguments in ([], ["2"], ["0", PROGRAM], ["two", PROGRAM]):
            done = self.start_ranks(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("usage: start_ranks.sh UNIQUE_ID RANKS PROGRAM", done.stderr)

    def test_the_script_says_when_there_is_no_id(self):
        for program in ("false", "/no/such/program"):
            done = run([SCRIPT[0], program, "2", PROGRAM])
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"start_ranks.sh: {program} has ended without a unique id", done.stderr)

    def test_two_versions_of_the_library(self):
        """Rank 1 has a copy of the library in which the version alone is another."""
        with open(LIBRARY, "rb") as file:
            code = file.read()
        ours = re.findall(rb"library=(\d+\.\d+\.\d+) ", code)
        self.assertEqual(len(ours), 1, "the version as the ranks compare it")
        theirs = ours[0][:-1] + (b"8" if ours[0].endswith(b"9") else b"9")
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, os.path.basename(LIBRARY))
            with open(other, "wb") as file:
                file.write(code.replace(b"library=" + ours[0], b"library=" + theirs))
            made = self.make_id()
            ranks = [self.start(0, made), self.start(1, made, LD_PRELOAD=other)]
            for rank, process in enumerate(ranks):
                out, error = process.communicate(timeout=DEADLINE)
                self.assertNotEqual(process.returncode, 0, out)
                said = re.search(r"settings differ between ranks (\d) and (\d): 'library=(\S+) .*' and 'library=(\S+) ", error)
                self.assertTrue(said, f"rank {rank}: {error}")
                self.assertEqual({said[1]: said[3], said[2]: said[4]}, {"0": ours[0].decode(), "1": theirs.decode()})

    def test_by_variable_and_by_standard_input(self):
        made = self.make_id()
        first, second = self.start(0, made), self.start(1, "-", text="")
        out, error = second.communicate(made + "\n", timeout=DEADLINE)
        self.assertEqual(out, "rank 1 of 2: ok\n", error)
        out, error = first.communicate(timeout=DEADLINE)
        self.assertEqual(out, "rank 0 of 2: ok\n", error)

    def test_wrong_values_are_named(self):
        cases = [({}, "nothing in the environment says which rank this process is"),
                 ({"TREERING_RANKS": "2"}, "TREERING_RANKS is set, but TREERING_RANK is not: give"),
                 ({"TREERING_ID": "-"}, "TREERING_ID is set, but TREERING_RANK is not: give"),
                 ({"TREERING_RANK": "0"}, "TREERING_RANKS is not set; give a number from 1"),
                 ({"TREERING_RANK": "2", "TREERING_RANKS": "2"}, "TREERING_RANK is '2'; give a number from 0 to 1"),
                 ({"TREERING_RANK": "x", "TREERING_RANKS": "2"}, "TREERING_RANK is 'x'; give a number from 0 to 1"),
                 ({"TREERING_RANK": "0", "TREERING_RANKS": "2"}, "TREERING_ID is not: give it the id in hex"),
                 ({"TREERING_RANK": "0", "TREERING_RANKS": "2", "TREERING_ID": "-"}, "standard input ended before"),
                 ({"TREERING_RANK": "0", "TREERING_RANKS": "2", "TREERING_ID": "12ab"},
                  "TREERING_ID: not a unique id: 4 characters, not 256 hexadecimal digits"),
                 ({"TREERING_RANK": "0", "TREERING_RANKS": "0"}, "TREERING_RANKS is '0'; give a number from 1 to 1024"),
                 ({"TREERING_RANK": "0", "TREERING_RANKS": "1025"}, "TREERING_RANKS is '1025'; give a number from 1 to 1024"),
                 ({"TREERING_RANK": "1", "TREERING_RANKS": "1"}, "TREERING_RANK is '1'; give 0"),
                 ({"RANK": "0", "WORLD_SIZE": "1025"}, "WORLD_SIZE is '1025'; give a number from 1 to 1024"),
                 ({"RANK": "0", "WORLD_SIZE": "2"}, "but MASTER_ADDR is not: start with torchrun"),
                 ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "::1"}, "but MASTER_PORT is not: start with torchrun"),
                 ({"PMI_FD": "1", "PMI_SIZE": "1025"}, "PMI_SIZE is '1025'; give a number from 1 to 1024"),
                 ({"PMI_FD": "99", "PMI_RANK": "0", "PMI_SIZE": "2"}, "the process manager behind PMI_FD: Bad file"),
                 ({"PMI_FD": "x", "PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI_FD is 'x'; give a number")]
        for variables, words in cases:
            done = run([PROGRAM], **variables)
            self.assertEqual(done.returncode, 1, variables)
            self.assertIn(words, done.stderr, variables)


class BadProcessManager(unittest.TestCase):
    """What stands behind PMI_FD may answer anything."""

    def outcome(self, answer):
        ours, theirs = socket.socketpair()

        def serve():
            ours.settimeout(DEADLINE)
            if ours.recv(4096) and answer is not None:
                ours.sendall(answer)
            ours.close()
        thread = threading.Thread(target=serve)
        thread.start()
        done = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=DEADLINE, pass_fds=[theirs.fileno()],
                              env=clean_environment(PMI_FD=str(theirs.fileno()), PMI_RANK="1", PMI_SIZE="2"))
        theirs.close()
        thread.join()
        self.assertEqual(done.returncode, 1)
        return done.stderr

    def test_each_failure_is_told(self):
        self.assertIn("it closed the connection", self.outcome(None))
        self.assertIn("it closed the connection", self.outcome(b"cmd=response_to_init rc=0"))
        self.assertIn("it refused 'init", self.outcome(b"cmd=response_to_init pmi_version=2 rc=-1\n"))
        self.assertIn("it answered 'hello' to", self.outcome(b"hello\n"))
        self.assertIn("it sent a line without an end", self.outcome(b"x" * 10000))


if __name__ == "__main__":
    names = [f"Launchers.test_{sys.argv[3]}"] if len(sys.argv) > 3 else ["TorchRun", "FirstFailure", "OwnVariables", "BadProcessManager", "Pmix"]
    outcome = unittest.TextTestRunner(verbosity=2).run(
        unittest.defaultTestLoader.loadTestsFromNames(names, sys.modules["__main__"]))
    sys.exit(1 if not outcome.wasSuccessful() else SKIP if outcome.skipped else 0)
