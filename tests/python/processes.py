# SPDX-License-Identifier: Apache-2.0
"""Starts ranks by the launcher, as a program does, for tests that look at them from outside."""
import os
import subprocess
import sys
import tempfile
import textwrap

DEADLINE = 60
LAUNCHERS = ("TREERING_RANK", "TREERING_ID", "PMI", "OMPI", "SLURM", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "TORCHELASTIC_",
             "PYTHONUNBUFFERED")  # prints of ranks would mix


def clean_environment(**more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
    return {**kept, **more}


class Job:
    """A program on ranks; its lines are read as they come."""

    def __init__(self, text, *launcher, arguments=(), **variables):
        self.directory = tempfile.TemporaryDirectory()
        program = os.path.join(self.directory.name, "program.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))
        self.errors = open(os.path.join(self.directory.name, "errors"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([sys.executable, "-m", "treering.run", *launcher, program, *arguments],
                                        env=clean_environment(**variables), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        self.directory.cleanup()

    def line(self):
        return self.process.stdout.readline().strip()

    def lines(self, count):
        return sorted(self.line() for _ in range(count))

    def finish(self):
        """(exit status, what else it printed, what it said on standard error)"""
        rest, _ = self.process.communicate(timeout=DEADLINE)
        self.errors.seek(0)
        return self.process.returncode, rest, self.errors.read()


def run(text, *launcher, **more):
    with Job(text, *launcher, **more) as job:
        return job.finish()
