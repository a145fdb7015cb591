#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program of the GPU suite, shortened, under a tool of compute-sanitizer.

usage: sanitize.py memcheck|racecheck|synccheck PROGRAM

compute-sanitizer is looked for in PATH, $CUDA_HOME/bin and /usr/local/cuda/bin, or is $TREERING_COMPUTE_SANITIZER. Exit status
77 (skipped), with the reason, where there is none or no GPU.
"""

import os
import shutil
import subprocess
import sys

SKIPPED = 77
FOUND_ERRORS = 99  # of the tool
LIMIT_S = 1200


def find_tool():
    chosen = os.environ.get("TREERING_COMPUTE_SANITIZER")
    if chosen:
        return chosen
    folders = [os.environ.get("PATH", ""), os.path.join(os.environ.get("CUDA_HOME", "/nonexistent"), "bin"),
               "/usr/local/cuda/bin"]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def main():
    kind, program = sys.argv[1:]
    tool = find_tool()
    if tool is None:
        print(f"{kind} not run: compute-sanitizer was not found in PATH, $CUDA_HOME/bin or /usr/local/cuda/bin")
        return SKIPPED
    environment = {**os.environ, "TREERING_GPU_SHORT": "1"}
    asked = subprocess.run([program, "--device"], env=environment, timeout=120)
    if asked.returncode != 0:  # it has said why
        return asked.returncode
    # Without --force-blocking-launches: ranks' kernels wait for one another.
    command = [tool, "--tool", kind, "--error-exitcode", str(FOUND_ERRORS), program]
    ran = subprocess.run(command, env=environment, timeout=LIMIT_S)
    if ran.returncode == FOUND_ERRORS:
        print(f"{kind} found errors")
    return 1 if ran.returncode == SKIPPED else ran.returncode


if __name__ == "__main__":
    sys.exit(main())
