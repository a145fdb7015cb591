#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipeline-parallel training: each rank has some layers; compared with a single process.

    torchrun --nproc-per-node 2 train.py

A batch is cut into pieces. Each rank computes forward for as many pieces as ranks follow it, and then one backward and one
forward in turns, "1F1B" (Narayanan et al., PipeDream, SOSP 2019). Ends with status 0 when the parameters agree to rounding.
"""
import sys

import torch
import torch.distributed as dist
import treering.torch  # noqa: F401 - not needed where the package is installed

STEPS, BATCH, PIECES, WIDTH, LAYERS = 100, 32, 8, 24, 6
PIECE = BATCH // PIECES


def make_layers():
    torch.manual_seed(1)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]


def batches():
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH, generator=generator)
        yield inputs, inputs.flip(1).sin()


def loss_of(outputs, wanted):
    return (outputs - wanted).square().sum() / (BATCH * WIDTH)


class Stage:
    def __init__(self, layers):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        first, last = (LAYERS * each // self.size for each in (self.rank, self.rank + 1))
        self.layers = torch.nn.Sequential(*layers[first:last])
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.5)
        self.is_first, self.is_last = self.rank == 0, self.rank == self.size - 1

    def forward(self, inputs, wanted):
        """Computes one piece; returns what backward() needs."""
        if self.is_first:
            received = inputs
        else:
            received = torch.empty(PIECE, WIDTH)
            dist.recv(received, self.rank - 1)
            received.requires_grad_()
        outputs = self.layers(received)
        if self.is_last:
            return received, loss_of(outputs, wanted)
        return received, outputs, dist.isend(outputs.detach(), self.rank + 1)

    def backward(self, received, outputs, sent=None):
        if self.is_last:
            outputs.backward()
        else:
            gradient = torch.empty(PIECE, WIDTH)
            dist.recv(gradient, self.rank + 1)
            sent.wait()
            outputs.backward(gradient)
        return None if self.is_first else dist.isend(received.grad, self.rank - 1)

    def step(self, inputs, wanted):
        under_way, sent = [], []
        before = min(PIECES, self.size - 1 - self.rank)
        pieces = list(zip(inputs.split(PIECE), wanted.split(PIECE)))
        self.optimizer.zero_grad()
        for piece in pieces[:before]:
            under_way.append(self.forward(*piece))
        for piece in pieces[before:]:
            under_way.append(self.forward(*piece))
            sent.append(self.backward(*under_way.pop(0)))
        while under_way:
            sent.append(self.backward(*under_way.pop(0)))
        for work in sent:
            if work is not None:
                work.wait()
        self.optimizer.step()


def train_alone(layers):
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for inputs, wanted in batches():
        optimizer.zero_grad()
        loss = loss_of(model(inputs), wanted)
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("treering")
    rank, size = dist.get_rank(), dist.get_world_size()
    if size > LAYERS:
        sys.exit(f"{size} ranks: give at most {LAYERS}, one for each layer")
    layers, alone = make_layers(), make_layers()
    stage = Stage(layers)
    for inputs, wanted in batches():
        stage.step(inputs, wanted)
    loss = train_alone(alone)
    own = {id(parameter) for parameter in stage.layers.parameters()}
    difference = torch.tensor(max((one - other).abs().max().item() for mine, theirs in zip(layers, alone)
                                  for one, other in zip(mine.parameters(), theirs.parameters()) if id(one) in own))
    dist.all_reduce(difference, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{size} ranks, {PIECES} pieces: loss {loss:.4f}, largest difference to one process {difference.item():.1e}")
    dist.destroy_process_group()
    return 0 if difference.item() < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
