#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gradients that travel as fp16 while the next step computes, compared with a single process.

    torchrun --nproc-per-node 2 train.py

Each step uses the gradients of the step before. Ends with status 0 when the accuracy on points that were not trained on is
within one percent of that of a single process, which uses each gradient at once.
"""
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from treering.torch import hooks

STEPS, BATCH, FEATURES, CLASSES = 150, 48, 32, 8


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 128), torch.nn.ReLU(), torch.nn.Linear(128, CLASSES))


def points(number, seed):
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (number,), generator=generator)
    return centres[labels] + 1.5 * torch.randn(number, FEATURES, generator=generator), labels


def train(model, part, parts):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(STEPS):
        inputs, labels = points(BATCH, 100 + step)
        loss = torch.nn.functional.cross_entropy(model(inputs[part::parts]), labels[part::parts])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def accuracy(model):
    inputs, labels = points(5000, 3)
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


def main():
    dist.init_process_group("treering")
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        sys.exit(f"{size} ranks: give a number that divides {BATCH}")
    model = make_model()
    late = hooks.Late("fp16")
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(late, hooks.late)
    train(parallel, rank, size)
    late.finish()
    alone = make_model()
    train(alone, 0, 1)
    reached, due = accuracy(model), accuracy(alone)
    if rank == 0:
        print(f"{size} ranks, one step late, as fp16: accuracy {reached:.3f}; one process {due:.3f}")
    dist.destroy_process_group()
    return 0 if reached > due - 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
