# SPDX-License-Identifier: Apache-2.0
"""Groups of some ranks, and process groups that end and begin again."""

import torch
import torch.distributed as dist

from checks import same


def check_new_group(c):
    half = (c.size + 1) // 2
    members = [list(range(half)), list(range(half, c.size))]
    groups = [dist.new_group(ranks) for ranks in members]
    for ranks, group in zip(members, groups):
        if c.rank in ranks:
            data = c.values(c.rank, 1000, torch.float32)
            dist.all_reduce(data, group=group)
            same(data, c.sum(1000, torch.float32, of=ranks), "all_reduce of a new_group")
    # Both groups, and the whole again.
    data = c.values(c.rank, 1000, torch.float32)
    dist.all_reduce(data)
    same(data, c.sum(1000, torch.float32), "all_reduce beside a new_group")


def check_split_group(c):
    if not c.has("split_group"):
        return "skipped: not in gloo"
    evens, odds = list(range(0, c.size, 2)), list(range(1, c.size, 2))
    group = dist.split_group(split_ranks=[evens, odds])
    ranks = evens if c.rank % 2 == 0 else odds
    data = c.values(c.rank, 1000, torch.float32)
    dist.all_reduce(data, group=group)
    same(data, c.sum(1000, torch.float32, of=ranks), "all_reduce of a split_group")


CHECKS = [check_new_group, check_split_group]
