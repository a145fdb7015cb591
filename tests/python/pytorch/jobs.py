# SPDX-License-Identifier: Apache-2.0
"""Starts ranks without a launcher, for tests in which some of them fail: torchrun would end the others."""
import os
import signal
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from processes import DEADLINE, clean_environment  # noqa: E402

# Every program begins with it. The store is a file, which no rank takes with it.
BEGIN = """
import datetime, os, signal, sys, threading
import torch
import torch.distributed as dist
import treering.torch

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
torch.set_num_threads(1)
rank, size = int(sys.argv[2]), int(sys.argv[3])

def begin(seconds=60):
    dist.init_process_group("treering", init_method="file://" + sys.argv[1], rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=seconds))

def say(*words):
    print(*words, flush=True)

def error_of(call):
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"

def wait_for_test():
    # until the test says go_on()
    signal.sigwait([signal.SIGUSR1])

def wait_for_ever():
    threading.Event().wait()

"""


class Job:
    """A program on ranks; the lines of each are read as they come. What is left is killed at the end."""

    def __init__(self, text, size, **variables):
        self.directory = tempfile.TemporaryDirectory()
        program = os.path.join(self.directory.name, "program.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(BEGIN + textwrap.dedent(text))
        store = os.path.join(self.directory.name, "store")
        self.errors = [open(os.path.join(self.directory.name, f"errors{rank}"), "w+", encoding="utf-8") for rank in range(size)]
        self.ranks = [subprocess.Popen([sys.executable, program, store, str(rank), str(size)], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=self.errors[rank], text=True,
                                       env=clean_environment(OMP_NUM_THREADS="1", **variables)) for rank in range(size)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        for file in self.errors:
            file.close()
        self.directory.cleanup()

    def line(self, rank):
        return self.ranks[rank].stdout.readline().strip()

    def go_on(self, rank):
        self.ranks[rank].send_signal(signal.SIGUSR1)

    def finish(self, rank):
        """(exit status, what else it printed, what it said on standard error)"""
        self.ranks[rank].wait(DEADLINE)
        rest = self.ranks[rank].stdout.read()
        self.errors[rank].seek(0)
        return self.ranks[rank].returncode, rest, self.errors[rank].read()
