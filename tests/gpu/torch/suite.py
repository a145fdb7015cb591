#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The suite, as each rank runs it: torchrun --nproc_per_node N suite.py --backend nccl|gloo

All ranks use the GPU whose number is LOCAL_RANK, modulo the GPUs that there are; with gloo none. A check that fails is
named by its traceback and ends the run: the others would wait for it.
"""

import argparse
import contextlib
import ctypes
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import collectives
import groups
import training
from checks import Context, same

EXPECTED_VERSION = 22809


def begin(backend, store_prefix=""):
    device = None
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = None
    if store_prefix:
        # A meeting place of its own: torchrun's has the keys of the process group that was before.
        port = int(os.environ["MASTER_PORT"])
        shared = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
        store = dist.PrefixStore(store_prefix, shared)
    dist.init_process_group(backend, store=store, rank=int(os.environ["RANK"]), device_id=device,
                            world_size=int(os.environ["WORLD_SIZE"]), timeout=datetime.timedelta(seconds=120))
    return Context(backend)


def check_library():
    """That the library under test is the one that PyTorch calls."""
    version = ctypes.c_int()
    assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version)) == 0
    assert version.value == EXPECTED_VERSION, f"the NCCL in use is {version.value}: preload this build's libnccl.so.2"


def check_sum(c, what):
    data = c.values(c.rank, 1000, torch.float32)
    dist.all_reduce(data)
    same(data, c.sum(1000, torch.float32), what)


def run_again(c, backend):
    """A process group that is given up (NCCL: aborted with an operation under way), and another after it."""
    if c.has("abort"):
        if c.rank == 0:
            with contextlib.suppress(dist.DistBackendError):  # another rank may have aborted already, which this one is told
                dist.all_reduce(c.values(0, 1000, torch.float32), async_op=True)  # that no other rank joins
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()
    c = begin(backend, "again")
    check_sum(c, "all_reduce after abort and new init")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    arguments = parser.parse_args()
    if arguments.backend == "nccl":
        check_library()
    c = begin(arguments.backend)
    checks = collectives.CHECKS + groups.CHECKS + training.CHECKS
    for check in checks:
        begun = time.monotonic()
        outcome = check(c) or "ok"
        if c.rank == 0:
            print(f"{check.__name__}: {outcome}, {time.monotonic() - begun:.2f} s", flush=True)
    run_again(c, arguments.backend)
    dist.destroy_process_group()
    if c.rank == 0:
        print(f"abort and new init: ok\nno check failed with {c.size} ranks", flush=True)


if __name__ == "__main__":
    sys.exit(main())
