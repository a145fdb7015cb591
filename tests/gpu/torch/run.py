#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on libnccl.so.2 of this build: 2 and 4 ranks on one GPU, also with non-blocking communicators.

usage: run.py LIBRARY [--backend nccl|gloo]

With gloo the same suite runs on the CPU without the library, which tests the suite. The interpreter is $TREERING_TEST_PYTHON,
or this one. Exit status 77 (skipped), with the reason, where it has no PyTorch, or there is no GPU.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

PYTHON = os.environ.get("TREERING_TEST_PYTHON", sys.executable)
SUITE = Path(__file__).resolve().parent / "suite.py"
SKIPPED = 77
LIMIT_S = 400


def why_not(backend):
    asked = subprocess.run(
        [PYTHON, "-c", "import torch, torch.distributed as d; print(torch.cuda.is_available(), d.is_nccl_available())"],
        capture_output=True, text=True, timeout=120)
    if asked.returncode != 0:
        return f"{PYTHON} cannot import torch (set TREERING_TEST_PYTHON to an interpreter that can)"
    # Debian 12 has PyTorch 1.13 and Python 3.11, in which zero is no member of an enum's list: torchrun cannot start there.
    starts = [PYTHON, "-c", "from torch.distributed.elastic.multiprocessing import Std; assert Std.from_str('0') is not None"]
    if subprocess.run(starts, capture_output=True, timeout=120).returncode != 0:
        return f"torchrun of {PYTHON} does not work with its version of Python (set TREERING_TEST_PYTHON to another one)"
    if backend == "nccl" and asked.stdout.split() != ["True", "True"]:
        return "torch finds no GPU, or was built without NCCL"
    return ""


def run(ranks, backend, library, extra):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    if backend == "nccl":
        environment["LD_PRELOAD"] = library
    # A meeting at a port that is free: several runs do not meet.
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), str(SUITE),
               "--backend", backend]
    print(f"== {ranks} ranks, {backend} {' '.join(f'{k}={v}' for k, v in extra.items())}", flush=True)
    return subprocess.run(command, env=environment, timeout=LIMIT_S).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    arguments = parser.parse_args()
    reason = why_not(arguments.backend)
    if reason:
        print(f"torch.distributed not run: {reason}")
        return SKIPPED
    runs = [(2, {}), (4, {})]
    if arguments.backend == "nccl":
        runs.append((2, {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}))
    failed = [ranks for ranks, extra in runs if not run(ranks, arguments.backend, arguments.library, extra)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
