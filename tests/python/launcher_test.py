# SPDX-License-Identifier: Apache-2.0
"""python -m treering.run: ranks, exit status, the end of all when one fails, hosts."""
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import unittest

from processes import DEADLINE, Job, clean_environment, run
from treering.run import GRACE

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from attempts import InThreeAttempts  # noqa: E402

PRINTS = """
    import sys, treering
    comm = treering.init()
    print(comm.rank, comm.size, *sys.argv[1:], flush=True)
    comm.barrier()
"""
# The other ranks wait in a call, or in something else that takes long.
FAILS = """
    import os, signal, sys, threading, treering, numpy
    comm = treering.init()
    print(os.getpid(), flush=True)
    comm.barrier()
    if comm.rank == 1:
        {how}
    {others}
"""


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class FirstFailure(InThreeAttempts):
    def test_the_others_have_a_second_to_say_why(self):
        with Job(FAILS.format(how="os.kill(os.getpid(), signal.SIGKILL)", others="comm.barrier()"), "-n", "3") as job:
            pids = [int(line) for line in job.lines(3)]
            code, _, errors = job.finish()
        self.assertEqual(code, 137, errors)
        self.assertGreaterEqual(sum(errors.count(f"rank 1 (pid {pid})") for pid in pids), 2, errors)


class Launcher(unittest.TestCase):
    def assert_gone(self, pids):
        """They end, though perhaps after those who started them."""
        deadline = time.monotonic() + DEADLINE
        while alive := [pid for pid in pids if is_alive(pid)]:
            self.assertLess(time.monotonic(), deadline, alive)

    def test_ranks_and_arguments(self):
        with Job(PRINTS, "-n", "3", arguments=("a", "--b", "c d")) as job:
            self.assertEqual(job.lines(3), [f"{rank} 3 a --b c d" for rank in range(3)])
            self.assertEqual(job.finish()[:2], (0, ""))

    def test_first_failure(self):
        for how, status in (("sys.exit(7)", 7), ("raise KeyError", 1), ("os.kill(os.getpid(), signal.SIGKILL)", 137)):
            for others in ("comm.barrier()", "threading.Event().wait()"):
                with self.subTest(how=how, others=others):
                    with Job(FAILS.format(how=how, others=others), "-n", "3") as job:
                        pids = [int(line) for line in job.lines(3)]
                        code, _, errors = job.finish()
                    self.assertEqual(code, status, errors)
                    self.assertIn("rank 1 ended", errors)
                    self.assert_gone(pids)

    def test_a_rank_that_ignores_signals_is_killed(self):
        others = "signal.signal(signal.SIGTERM, signal.SIG_IGN); comm.send(numpy.ones(1), 1); threading.Event().wait()"
        with Job(FAILS.format(how="comm.recv(numpy.ones(1), 0); sys.exit(9)", others=others), "-n", "2") as job:
            pids = [int(line) for line in job.lines(2)]
            begin = time.monotonic()
            self.assertEqual(job.finish()[0], 9)
            self.assertGreaterEqual(time.monotonic() - begin, GRACE)  # SIGTERM was not enough
            self.assert_gone(pids)

    def test_signals_reach_the_ranks(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number=number):
                with Job(FAILS.format(how="pass", others="comm.recv(numpy.ones(1), comm.rank ^ 1)"), "-n", "2") as job:
                    pids = [int(line) for line in job.lines(2)]
                    job.process.send_signal(number)
                    self.assertEqual(job.finish()[0], status)
                self.assert_gone(pids)

    def test_a_terminal_interrupts_each_rank_once(self):
        """A terminal sends the signal to all processes of the group; the launcher alone is in it, and sends it on."""
        text = """
            import os, signal, threading, treering
            comm = treering.init()
            came = []
            signal.signal(signal.SIGINT, lambda *_: came.append(1))
            comm.barrier()
            print(os.getpid() == os.getpgid(0), flush=True)
            while not came:
                threading.Event().wait(0.01)
            threading.Event().wait(0.3)
            print(len(came), flush=True)
        """
        with Job(text, "-n", "2") as job:
            self.assertEqual(job.lines(2), ["True"] * 2)
            os.killpg(job.process.pid, signal.SIGINT)
            code, printed, errors = job.finish()
        self.assertEqual((code, printed), (130, "1\n1\n"), errors)

    def test_a_killed_launcher_leaves_no_ranks(self):
        with Job(FAILS.format(how="pass", others="threading.Event().wait()"), "-n", "2") as job:
            pids = [int(line) for line in job.lines(2)]
            job.process.kill()
            job.process.wait()
            job.process.stdout.read()  # ends when no rank has it any more
            self.assert_gone(pids)

    def test_hosts(self):
        text = PRINTS + "    print(len({h for h in comm.allgather_objects(__import__('os').environ['TREERING_HOSTID'])}))\n"
        with Job(text, "--hosts", "a:2,b:1", "--launcher", "env TREERING_HOSTID={host}") as job:
            self.assertEqual(job.lines(3), ["0 3", "1 3", "2 3"])
            self.assertEqual(job.finish()[:2], (0, "2\n2\n2\n"))

    def test_secrets_are_on_no_command_line(self):
        """A launcher that prints the command that it would run; it reads no standard input."""
        shows = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1])", "{command}"])
        code, printed, errors = run(PRINTS, "--hosts", "a:1,b:1", "--launcher", shows, TREERING_SECRET="not for all",
                                    TREERING_ALGORITHM="ring")
        self.assertEqual(code, 0, errors)
        self.assertEqual(printed.count("TREERING_ALGORITHM=ring"), 2)
        for name in ("TREERING_SECRET", "not for all", "TREERING_ID", "TREERING_RANK", "TREERING_HOSTID"):
            self.assertNotIn(name, printed)

    def test_what_cannot_be_started(self):
        for arguments, status, words in (
                (["--hosts", "a:1,b:1", "--launcher", "/no/such/launcher", "x"], 127,
                 "treering.run: /no/such/launcher cannot be started: No such file"),
                (["--hosts", "a:1", "--launcher", "'", "x"], 2, "--launcher is ''': No closing quotation"),
                (["-n", "2", "--python", "/no/such/python", "x"], 127,
                 "treering.run: /no/such/python cannot be started: No such file"),
                # They end before their standard input is written or closed.
                (["-n", "9", "--python", "false", "x"], 1, "rank"),
                (["--hosts", ",".join(f"h{k}" for k in range(9)), "--launcher", "false", "x"], 1, "host")):
            with self.subTest(arguments=arguments):
                done = subprocess.run([sys.executable, "-m", "treering.run", *arguments], env=clean_environment(),
                                      capture_output=True, text=True, timeout=DEADLINE)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertNotIn("Traceback", done.stderr)

    def test_an_input_that_nobody_reads(self):
        """The child is gone for certain when the line is written."""
        text = """
            import os, subprocess
            from treering import run
            real = subprocess.Popen

            def gone(*arguments, **more):
                process = real(*arguments, **more)
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                return process

            subprocess.Popen = gone
            children = run.Children("rank")
            child = children.start(0, ["true"], {}, b"line\\n")
            child.process.stdin.close()
            print("closed")
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], env=clean_environment(), capture_output=True,
                              text=True, timeout=DEADLINE)
        self.assertEqual((done.returncode, done.stdout), (0, "closed\n"), done.stderr)

    def test_a_failure_on_a_host(self):
        with Job(FAILS.format(how="sys.exit(7)", others="threading.Event().wait()"), "--hosts", "a:1,b:2", "--launcher",
                 "env TREERING_HOSTID={host}") as job:
            pids = [int(line) for line in job.lines(3)]
            code, _, errors = job.finish()
            self.assertEqual(code, 7, errors)
            self.assert_gone(pids)

    def test_wrong_arguments(self):
        for arguments, words in ((["-n", "0", "x"], "-n is 0; 1 or more"), (["x"], "give either -n or --hosts"),
                                 (["--hosts", "a:x", "x"], "--hosts has 'a:x'; HOST:RANKS is wanted")):
            done = subprocess.run([sys.executable, "-m", "treering.run", *arguments], env=clean_environment(),
                                  capture_output=True, text=True, timeout=DEADLINE)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)

    def test_a_setting_that_is_wrong(self):
        code, _, errors = run(PRINTS, "-n", "2", TREERING_TIMEOUT="abc")
        self.assertEqual(code, 1, errors)
        self.assertRegex(errors, "treering.run: .*TREERING_TIMEOUT")
        self.assertNotIn("Traceback", errors)

    def test_without_a_launcher(self):
        done = subprocess.run([sys.executable, "-c", "import treering; treering.init()"], env=clean_environment(),
                              capture_output=True, text=True, timeout=DEADLINE)
        self.assertIn("NoLauncher: nothing in the environment says which rank", done.stderr.replace("treering._errors.", ""))
        self.assertIn("python -m treering.run -n 4", done.stderr)

        # srun without PMI is not "no launcher": its processes must not become jobs of one rank each.
        done = subprocess.run([sys.executable, "-c", "import treering\ntry: treering.init()\n"
                               "except treering.NoLauncher: print('none')\nexcept treering.InvalidUsage as error: print(error)"],
                              env=clean_environment(SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="4"), capture_output=True, text=True,
                              timeout=DEADLINE)
        self.assertIn("srun gave the processes no way to meet", done.stdout)

    def test_mpirun(self):
        program = "import treering, numpy; print(treering.init().allreduce(numpy.ones(1)))"
        for command in (["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"], ["mpiexec.hydra"]):
            with self.subTest(launcher=command[0]):
                if shutil.which(command[0]) is None:
                    self.skipTest(f"{command[0]} is not there")
                done = subprocess.run([*command, "-n", "2", sys.executable, "-c", program], env=clean_environment(),
                                      capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL)
                self.assertEqual((done.returncode, done.stdout.split()), (0, ["[2.]"] * 2), done.stderr)

    def test_torchrun(self):
        """The variables that torchrun sets; without PyTorch."""
        port = 20000 + os.getpid() % 10000  # below those that the system gives out (32768 on)
        program = "import treering, numpy; print(treering.init().allreduce(numpy.ones(1)))"
        ranks = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                                  env=clean_environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                                        MASTER_PORT=str(port), TREERING_SECRET="of this test"))
                 for rank in range(2)]
        self.assertEqual([rank.communicate(timeout=DEADLINE)[0] for rank in ranks], ["[2.]\n"] * 2)


if __name__ == "__main__":
    unittest.main()
