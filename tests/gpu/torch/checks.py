# SPDX-License-Identifier: Apache-2.0
"""What the checks share: the backend under test, tensors whose values tell where they come from, and comparison."""

import torch
import torch.distributed as dist

INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
SIZES = [1, 1000, 70_001]

# What gloo does not do; everything else has to work with either backend.
NOT_IN_GLOO = {"all_to_all", "premul_sum", "average", "coalescing", "split_group", "abort"}


class Context:
    def __init__(self, backend):
        self.backend = backend
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")

    @property
    def moved_types(self):
        """Types of data that is only moved."""
        return INTEGERS + FLOATS + [torch.bool] + (FLOAT8 if self.backend == "nccl" else [])

    @property
    def reduced_types(self):
        return INTEGERS + FLOATS

    def has(self, name):
        return self.backend == "nccl" or name not in NOT_IN_GLOO

    def values(self, rank, count, dtype, block=0):
        """Small numbers, exact in every type and in sums of a few ranks, that differ by rank and block."""
        numbers = (torch.arange(count, device=self.device) + 3 * rank + block) % 5
        return numbers.to(torch.float32).to(dtype)

    def empty(self, count, dtype):
        return torch.zeros(count, device=self.device).to(dtype)

    def sum(self, count, dtype, block=0, of=None):
        total = self.empty(count, torch.float64)
        for rank in range(self.size) if of is None else of:
            total += self.values(rank, count, torch.float64, block)
        return total.to(dtype)


def same(got, wanted, what):
    if got.dtype in FLOAT8:
        got, wanted = got.view(torch.uint8), wanted.view(torch.uint8)
    if not torch.equal(got, wanted):
        wrong = (got != wanted).nonzero().flatten()
        at = int(wrong[0]) if wrong.numel() > 0 else -1
        raise AssertionError(f"{what}: {wrong.numel()} of {got.numel()} differ, first at {at}: "
                             f"{got.flatten()[at]} instead of {wanted.flatten()[at]}")
