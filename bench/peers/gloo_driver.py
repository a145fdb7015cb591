#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gloo's allreduce through PyTorch, one process for each rank: the same loop as measure.h.

torch.distributed reduces in place only, so out of place is a copy and a reduction, as a PyTorch user would write it.
Arguments: RANK RANKS MEETING_FILE CORE_OR_-1 POINTS IN_PLACE.
"""
import os
import sys
import time


def input_values(torch, rank, count):
    index = torch.arange(count, dtype=torch.int64)
    return ((index * 7 + rank * 13) % 31).to(torch.float32)


def measure_point(torch, dist, rank, ranks, size, iterations, in_place):
    """(time of a call in us, of the slowest rank; wrong values, of the worst rank)."""
    count = size // 4
    send, recv = input_values(torch, rank, count), torch.zeros(count)

    def call():
        if not in_place:
            recv.copy_(send)
        dist.all_reduce(recv)

    for _ in range(iterations // 10 + 1):
        call()
    recv.zero_()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        call()
    mine_us = (time.perf_counter() - begin) / iterations * 1e6
    dist.barrier()
    recv.copy_(send)
    dist.all_reduce(recv)
    expected = sum(input_values(torch, other, count) for other in range(ranks))
    result = torch.tensor([mine_us, float((recv != expected).sum())], dtype=torch.float64)
    dist.all_reduce(result, op=dist.ReduceOp.MAX)
    return result[0].item(), int(result[1].item())


def main():
    rank, ranks, meeting_file, core = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    points = [tuple(map(int, item.split(":"))) for item in sys.argv[5].split(",")]
    in_place = sys.argv[6] == "1"
    if core >= 0:
        os.sched_setaffinity(0, {core})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting_file, rank=rank, world_size=ranks)
    for size, iterations in points:
        time_us, wrong = measure_point(torch, dist, rank, ranks, size, iterations, in_place)
        if rank == 0:
            print(size, iterations, f"{time_us:.4f}", wrong, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
