#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy and PyTorch, where they are installed, load this library in place of NCCL.

usage: frameworks_test.py LIBRARY [PYTHON]     (PYTHON: or $TREERING_TEST_PYTHON, an interpreter that has them)

Exit status 77 (skipped) when neither is there. Host memory stands in for a GPU's: CuPy passes plain addresses on.
"""

import os
import subprocess
import sys

LIBRARY = sys.argv[1]
PYTHON = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("TREERING_TEST_PYTHON", sys.executable)

CUPY = """
import ctypes
from cupy.cuda import nccl
assert nccl.get_version() == 22809, nccl.get_version()
comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
assert (comm.rank_id(), comm.size()) == (0, 1)
value = (ctypes.c_float * 4)(1, 2, 3, 4)
result = (ctypes.c_float * 4)()
comm.allReduce(ctypes.addressof(value), ctypes.addressof(result), 4, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0)
assert list(result) == [1, 2, 3, 4], list(result)
comms = nccl.NcclCommunicator.initAll(1)
for made in comms:
    made.destroy()
comm.check_async_error()
comm.destroy()
print("cupy works")
"""
TORCH = """
import torch
import ctypes
# torch.cuda.nccl.version() is the header's that PyTorch was compiled with, whatever library is there: it is shown only.
print("compiled with NCCL", torch.cuda.nccl.version())
version = ctypes.c_int()
assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version)) == 0 and version.value == 22809, version.value
# A call of PyTorch's own: the log names the library that it reached.
assert len(torch.cuda.nccl.unique_id()) == 128
print("torch works")
"""


def is_there(needs):
    """Without this library: what fails with it is a failure, not a reason to skip."""
    return subprocess.run([PYTHON, "-c", f"import {needs}"], capture_output=True, timeout=120).returncode == 0


def main():
    skipped, failed = [], []
    for module, needs, program in (("cupy", "cupy", CUPY), ("torch", "torch; torch._C._nccl_version", TORCH)):
        if not is_there(needs):  # Debian's PyTorch knows no NCCL
            skipped.append(module)
            continue
        ran = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, timeout=300,
                             env={**os.environ, "LD_PRELOAD": LIBRARY, "NCCL_DEBUG": "VERSION"})
        print(module, ran.stdout, ran.stderr)
        if ran.returncode != 0 or "NCCL version 2.28.9+treering" not in ran.stdout:
            failed.append(module)
    print(f"skipped, because they cannot be imported: {', '.join(skipped) or 'none'}")
    return 1 if failed else 77 if len(skipped) == 2 else 0


if __name__ == "__main__":
    sys.exit(main())
