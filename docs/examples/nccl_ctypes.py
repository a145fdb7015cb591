#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks sum eight floats through libnccl.so.2, loaded by ctypes; host memory, no stream.

usage: nccl_ctypes.py LIBNCCL
"""
import ctypes
import multiprocessing
import sys

FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def load(path):
    nccl = ctypes.CDLL(path)
    nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p
    nccl.ncclGetLastError.argtypes = nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                   ctypes.c_void_p, ctypes.c_void_p]
    return nccl


def check(nccl, result, comm=None):
    if result != 0:
        sys.exit(f"{nccl.ncclGetErrorString(result).decode()}: {nccl.ncclGetLastError(comm).decode()}")


def run_rank(path, rank, ranks, ids):
    nccl = load(path)
    unique_id = UniqueId()
    if rank == 0:  # the process that makes the id is where the others meet: it must live until all have
        check(nccl, nccl.ncclGetUniqueId(ctypes.byref(unique_id)))
        for _ in range(1, ranks):
            ids.put(bytes(unique_id))
    else:
        unique_id = UniqueId.from_buffer_copy(ids.get(timeout=30))
    comm = ctypes.c_void_p()
    check(nccl, nccl.ncclCommInitRank(ctypes.byref(comm), ranks, unique_id, rank))
    values = (ctypes.c_float * 8)(*[rank + 1.0] * 8)
    check(nccl, nccl.ncclAllReduce(values, values, len(values), FLOAT, SUM, comm, None), comm)
    check(nccl, nccl.ncclCommDestroy(comm))
    print(f"rank {rank}: {values[0]}", flush=True)
    sys.exit(0 if list(values) == [ranks * (ranks + 1) / 2] * 8 else 1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    processes = [spawn.Process(target=run_rank, args=(sys.argv[1], rank, 2, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode != 0 for process in processes))
