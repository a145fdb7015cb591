#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Horovod's five steps on treering, compared with a single process.

    python -m treering.run -n 2 train.py

Ends with status 0 when the parameters agree to rounding.
"""
import sys

import torch
import treering.horovod as hvd

STEPS, BATCH, FEATURES = 60, 48, 16


def batches():
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(FEATURES, 1, generator=generator)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, FEATURES, generator=generator)
        yield inputs, (inputs @ weights).tanh()


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def train(model, optimizer, part, parts):
    for inputs, wanted in batches():
        loss = torch.nn.functional.mse_loss(model(inputs[part::parts]), wanted[part::parts])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def main():
    hvd.init()                                                                     # 1. join the job
    if BATCH % hvd.size():
        sys.exit(f"{hvd.size()} ranks: give a number that divides {BATCH}")
    torch.manual_seed(hvd.rank())
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)         # 2. with the learning rate of the whole batch
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())      # 3. averages of gradients
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)                      # 4. begin alike
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    alone = make_model()
    alone.load_state_dict(model.state_dict())
    loss = hvd.allreduce(train(model, optimizer, hvd.rank(), hvd.size()).detach())
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9), 0, 1)
    difference = max((one - other).abs().max().item() for one, other in zip(model.parameters(), alone.parameters()))
    if hvd.rank() == 0:                                                            # 5. one rank reports and saves
        print(f"{hvd.size()} ranks: loss {loss.item():.4f}, largest difference to one process {difference:.1e}")
    hvd.shutdown()
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
