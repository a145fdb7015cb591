#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client through ctypes, as vLLM's pynccl is one: every function is looked up at load, ids travel by value.

usage: ctypes_test.py LIBRARY          runs two ranks as processes
       ctypes_test.py LIBRARY RANK     one of them; the id in hexadecimal on standard input
"""

import ctypes
import subprocess
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_void_p

RANKS = 2
FLOAT32, SUM, AVG = 7, 0, 4


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


comm_t = stream_t = buffer_t = window_t = c_void_p
SIGNATURES = {
    "ncclGetErrorString": [c_int],
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRank": [POINTER(comm_t), c_int, UniqueId, c_int],
    "ncclAllReduce": [buffer_t, buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "ncclReduce": [buffer_t, buffer_t, c_size_t, c_int, c_int, c_int, comm_t, stream_t],
    "ncclAllGather": [buffer_t, buffer_t, c_size_t, c_int, comm_t, stream_t],
    "ncclReduceScatter": [buffer_t, buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "ncclSend": [buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "ncclRecv": [buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "ncclBroadcast": [buffer_t, buffer_t, c_size_t, c_int, c_int, comm_t, stream_t],
    "ncclCommDestroy": [comm_t],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommWindowRegister": [comm_t, buffer_t, c_size_t, POINTER(window_t), c_int],
    "ncclCommWindowDeregister": [comm_t, window_t],
}


class Library:
    def __init__(self, path):
        library = ctypes.CDLL(path)
        self.functions = {}
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.restype = c_char_p if name == "ncclGetErrorString" else c_int
            function.argtypes = arguments
            self.functions[name] = function

    def call(self, name, *arguments):
        result = self.functions[name](*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {self.functions['ncclGetErrorString'](result).decode()}")


def expect(name, got, expected):
    if list(got) != expected:
        sys.exit(f"{name}: {list(got)}, not {expected}")


def run_rank(library, rank):
    identity = UniqueId.from_buffer_copy(bytes.fromhex(sys.stdin.read()))
    comm = comm_t()
    library.call("ncclCommInitRank", byref(comm), RANKS, identity, rank)
    pair, four, one = c_float * 2, c_float * 4, c_float * 1
    mine = pair(1 + rank, 10)
    total, gathered, part = pair(), four(), one()
    window = window_t()
    library.call("ncclCommWindowRegister", comm, mine, 8, byref(window), 1)
    library.call("ncclAllReduce", mine, total, 2, FLOAT32, SUM, comm, None)
    expect("allreduce", total, [3, 20])
    library.call("ncclReduce", mine, total, 2, FLOAT32, AVG, 1, comm, None)
    expect("reduce", total, [1.5, 10] if rank == 1 else [3, 20])
    library.call("ncclAllGather", mine, gathered, 2, FLOAT32, comm, None)
    expect("allgather", gathered, [1, 10, 2, 10])
    library.call("ncclReduceScatter", mine, part, 1, FLOAT32, SUM, comm, None)
    expect("reduce-scatter", part, [[3], [20]][rank])
    library.call("ncclBroadcast", mine, total, 2, FLOAT32, 0, comm, None)
    expect("broadcast", total, [1, 10])
    library.call("ncclGroupStart")
    library.call("ncclSend", mine, 2, FLOAT32, 1 - rank, comm, None)
    library.call("ncclRecv", total, 2, FLOAT32, 1 - rank, comm, None)
    library.call("ncclGroupEnd")
    expect("send and receive", total, [2 - rank, 10])
    library.call("ncclCommWindowDeregister", comm, window)
    library.call("ncclCommDestroy", comm)
    try:
        library.call("ncclCommDestroy", comm)
    except RuntimeError as error:
        if "invalid argument" in str(error):
            return
    sys.exit("destroyed twice without an error")


def main():
    library = Library(sys.argv[1])
    if len(sys.argv) == 3:
        return run_rank(library, int(sys.argv[2]))
    version = c_int()
    library.call("ncclGetVersion", byref(version))
    if version.value != 22809:
        sys.exit(f"version {version.value}")
    identity = UniqueId()
    library.call("ncclGetUniqueId", byref(identity))
    ranks = [subprocess.Popen([sys.executable, __file__, sys.argv[1], str(rank)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(RANKS)]
    for process in ranks:
        process.stdin.write(bytes(identity).hex())
        process.stdin.close()
        process.stdin = None
    failed = False
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=60)
        failed |= process.returncode != 0
        print(f"rank {rank}: exit status {process.returncode} {output}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
