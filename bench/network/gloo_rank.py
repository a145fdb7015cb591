#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank of gloo, through PyTorch, for bench/netlab: serves the commands of bench/peers/serve.h.

Arguments: RANK RANKS FOLDER (of the named pipes, and of the file where the ranks meet).
"""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
from gloo_driver import input_values, measure_point  # noqa: E402

BUCKET = 25 << 18  # floats, as in loop.h


class Loop:
    """loop.h: variants plain and fused; the computation is a sleep."""

    def __init__(self, torch, dist, rank, ranks, variant, file, compute_us):
        self.torch, self.dist, self.rank, self.ranks = torch, dist, rank, ranks
        self.variant, self.compute_s = variant, float(compute_us) / 1e6
        with open(file) as counts:
            self.tensors = [torch.zeros(int(count)) for count in counts]
        self.bucket = torch.empty(BUCKET)
        self.pieces = [piece for tensor in self.tensors for piece in self.split(tensor)]

    def split(self, tensor):
        """The parts of a tensor that lie in one bucket each, as (bucket, where in it, part)."""
        begin = getattr(self, "_elements", 0)
        self._elements = begin + tensor.numel()
        at = begin
        while at < self._elements:
            count = min(self._elements, (at // BUCKET + 1) * BUCKET) - at
            yield at // BUCKET, at % BUCKET, tensor[at - begin:at - begin + count]
            at += count

    def exchange(self):
        if self.variant == "plain":
            for tensor in self.tensors:
                self.dist.all_reduce(tensor)
            return
        for bucket in range(self.pieces[-1][0] + 1):
            pieces = [(at, part) for number, at, part in self.pieces if number == bucket]
            for at, part in pieces:
                self.bucket[at:at + part.numel()].copy_(part)
            self.dist.all_reduce(self.bucket[:pieces[-1][0] + pieces[-1][1].numel()])
            for at, part in pieces:
                part.copy_(self.bucket[at:at + part.numel()])

    def run(self, steps):
        """(time of a step in us, of the slowest rank; wrong values)."""
        for _ in range(2):
            self.exchange()
        self.dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            time.sleep(self.compute_s)
            self.exchange()
        mine = (time.perf_counter() - begin) / steps * 1e6
        for i, tensor in enumerate(self.tensors):
            tensor.copy_(input_values(self.torch, self.rank, tensor.numel() + i)[i:])
        self.exchange()
        wrong = 0
        for i, tensor in enumerate(self.tensors):
            expected = sum(input_values(self.torch, rank, tensor.numel() + i)[i:] for rank in range(self.ranks))
            wrong += int((tensor != expected).sum())
        result = self.torch.tensor([mine, float(wrong)], dtype=self.torch.float64)
        self.dist.all_reduce(result, op=self.dist.ReduceOp.MAX)
        return result[0].item(), int(result[1].item())


def main():
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meeting"), rank=rank, world_size=ranks)
    with open(os.path.join(folder, str(rank))) as commands:
        for line in iter(commands.readline, ""):
            words = line.split()
            if words[0] == "point":
                size, count = int(words[1]), int(words[2])
                time_us, wrong = measure_point(torch, dist, rank, ranks, size, count, in_place=False)
            else:
                count = int(words[5])
                loop = Loop(torch, dist, rank, ranks, words[1], words[2], words[4])
                size = 4 * sum(tensor.numel() for tensor in loop.tensors)
                time_us, wrong = loop.run(count)
            if rank == 0:
                print(size, count, f"{time_us:.4f}", wrong, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
