# SPDX-License-Identifier: Apache-2.0
"""Several groups: of some ranks, one after another, side by side, split."""
import os
import unittest

import members
import torch
import torch.distributed as dist
from members import TIMEOUT, rank, same, size, total, values
from torch.distributed.device_mesh import init_device_mesh

ROUNDS = 50


def check(group, ranks):
    x = values(rank(), 1000, torch.float32)
    dist.all_reduce(x, group=group)
    same(x, total(1000, torch.float32, of=ranks))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Groups(unittest.TestCase):
    def test_some_ranks(self):
        half = (size() + 1) // 2
        for ranks in (list(range(half)), list(range(half, size())), list(range(size()))):
            if not ranks:
                continue
            group = dist.new_group(ranks, timeout=TIMEOUT)
            if rank() in ranks:
                check(group, ranks)
                dist.destroy_process_group(group)
        check(None, range(size()))

    def test_side_by_side(self):
        groups = [dist.new_group(timeout=TIMEOUT) for _ in range(3)]
        tensors = [values(rank(), 1000, torch.float32, block) for block in range(3)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in zip(tensors, groups)]
        for work in reversed(works):
            work.wait()
        for block, tensor in enumerate(tensors):
            same(tensor, total(1000, torch.float32, block))
        for group in groups:
            dist.destroy_process_group(group)

    def test_split(self):
        evens, odds = list(range(0, size(), 2)), list(range(1, size(), 2))
        group = dist.split_group(split_ranks=[ranks for ranks in (evens, odds) if ranks], timeout=TIMEOUT)
        check(group, evens if rank() % 2 == 0 else odds)
        dist.destroy_process_group(group)

    def test_mesh(self):
        if size() % 2:
            return
        mesh = init_device_mesh("cpu", (size() // 2, 2), mesh_dim_names=("outer", "inner"))
        row = rank() // 2 * 2
        check(mesh.get_group("inner"), [row, row + 1])
        check(mesh.get_group("outer"), range(rank() % 2, size(), 2))

    def test_nothing_is_left(self):
        """Groups with collectives on their streams, and with lanes."""
        counts = []
        for number in range(ROUNDS):
            group = dist.new_group(timeout=TIMEOUT)
            dist.all_reduce(torch.ones(10), group=group, async_op=True).wait()
            if number % 10 == 0:
                sent = dist.isend(torch.ones(1), group=group, group_dst=(rank() + 1) % size())
                dist.irecv(torch.ones(1), group=group, group_src=(rank() - 1) % size()).wait()
                sent.wait()
            dist.barrier(group=group)
            dist.destroy_process_group(group)
            counts.append(descriptors())
        # Those of earlier rounds may go a moment after the call; in the end there are no more than in the beginning.
        self.assertLessEqual(min(counts[-10:]), counts[0], counts)


if __name__ == "__main__":
    members.main()
