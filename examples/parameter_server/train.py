#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A parameter server, synchronous and asynchronous; compared with a single process.

    torchrun --nproc-per-node 3 train.py

Rank 0 has the parameters. The others, the workers, send it gradients and get parameters back.

    synchronous    the server waits for all workers, and takes the average: as one process with the whole batch
    asynchronous   it takes each gradient when it comes. A worker that is STALENESS steps ahead of the slowest one waits for its parameters
                   (bounded staleness; Ho et al., NIPS 2013). Here the last worker is slow

Ends with status 0 when the synchronous parameters agree with those of one process to rounding, and the asynchronous ones are within one
percent of its accuracy.
"""
import sys
import time

import torch
import torch.distributed as dist
import treering.torch  # noqa: F401 - not needed where the package is installed

STEPS, BATCH, FEATURES, RATE = 120, 60, 24, 0.5
STALENESS, PAUSE = 4, 0.002


def batch(step):
    direction = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1))
    inputs = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(2 + step))
    return inputs, (inputs @ direction > 0).float()


def gradient(weights, step, part, parts):
    """The gradient of logistic regression, for a part of the batch."""
    inputs, labels = (each[part::parts] for each in batch(step))
    return inputs.T @ (torch.sigmoid(inputs @ weights) - labels) / len(labels)


def accuracy(weights):
    inputs, labels = map(torch.cat, zip(*(batch(STEPS + i) for i in range(50))))
    return ((inputs @ weights > 0) == labels.bool()).float().mean().item()


def worker(rank, workers, pause):
    weights = torch.empty(FEATURES)
    for step in range(STEPS):
        dist.recv(weights, 0)
        time.sleep(pause)
        dist.send(gradient(weights, step, rank - 1, workers), 0)


def serve_together(workers):
    weights = torch.zeros(FEATURES)
    gradients = torch.empty(workers, FEATURES)
    for _ in range(STEPS):
        for work in [dist.isend(weights, rank) for rank in range(1, workers + 1)] + \
                    [dist.irecv(gradients[rank - 1], rank) for rank in range(1, workers + 1)]:
            work.wait()
        weights = weights - RATE * gradients.mean(0)
    return weights


def serve_each(workers):
    """The parameters, and how far the fastest worker was ahead at most."""
    weights = torch.zeros(FEATURES)
    gradients = torch.empty(workers, FEATURES)
    steps, incoming, ahead = [0] * workers, [None] * workers, 0
    while min(steps) < STEPS:
        for index in range(workers):
            if incoming[index] is None and steps[index] < STEPS and steps[index] < min(steps) + STALENESS:
                dist.send(weights, index + 1)
                incoming[index] = dist.irecv(gradients[index], index + 1)
            if incoming[index] is not None and incoming[index].is_completed():
                incoming[index].wait()
                incoming[index] = None
                steps[index] += 1
                ahead = max(ahead, steps[index] - min(steps))
                weights = weights - RATE / workers * gradients[index]
    return weights, ahead


def main():
    dist.init_process_group("treering")
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    if workers < 1 or BATCH % workers:
        sys.exit(f"{workers} workers beside the server: give a number that divides {BATCH}")
    good = True
    if rank == 0:
        alone = torch.zeros(FEATURES)
        for step in range(STEPS):
            alone -= RATE * gradient(alone, step, 0, 1)
        together = serve_together(workers)
        each, ahead = serve_each(workers)
        difference, reached, wanted = (together - alone).abs().max().item(), accuracy(each), accuracy(alone)
        print(f"{workers} workers, synchronous: largest difference to one process {difference:.1e}")
        print(f"{workers} workers, asynchronous, up to {ahead} steps ahead: accuracy {reached:.4f}; one process {wanted:.4f}")
        good = difference < 1e-4 and ahead <= STALENESS and reached > wanted - 0.01
    else:
        worker(rank, workers, 0)
        worker(rank, workers, PAUSE if rank == workers else 0)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
