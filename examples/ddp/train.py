#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training with DistributedDataParallel on the CPU, compared with a single process.

    torchrun --nproc-per-node 2 train.py

Each rank trains on its part of every batch. Afterwards rank 0 trains alone on the whole batches. Ends with status 0 when
the parameters agree to rounding.
"""
import sys

import torch
import torch.distributed as dist
import treering.torch  # noqa: F401 - not needed where the package is installed
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, FEATURES, CLASSES = 60, 48, 32, 4


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, CLASSES))


def batches():
    """Points around one centre for each class."""
    generator = torch.Generator().manual_seed(2)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    for _ in range(STEPS):
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        yield centres[labels] + torch.randn(BATCH, FEATURES, generator=generator), labels


def train(model, part, parts):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, labels in batches():
        loss = torch.nn.functional.cross_entropy(model(inputs[part::parts]), labels[part::parts])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("treering")
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        sys.exit(f"{size} ranks: give a number that divides {BATCH}")
    model = make_model()
    loss = train(DistributedDataParallel(model), rank, size)
    alone = make_model()
    train(alone, 0, 1)
    difference = max((one - other).abs().max().item() for one, other in zip(model.parameters(), alone.parameters()))
    if rank == 0:
        print(f"{size} ranks: loss {loss:.4f}, largest difference to one process {difference:.1e}")
    dist.destroy_process_group()
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
