#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ZeRO: what each rank keeps is divided among the ranks; compared with a single process.

    torchrun --nproc-per-node 2 train.py

    stage 1   the optimizer's state: each rank has it for its part of the parameters
    stage 2   and the gradients: a reduce-scatter leaves each rank the sum of its part
    stage 3   and the parameters: PyTorch's fully_shard gathers those of a layer when they are needed

(Rajbhandari et al., ZeRO, SC 2020.) Ends with status 0 when the parameters of all three agree with those of a single process.
"""
import sys

import torch
import torch.distributed as dist
import treering.torch  # noqa: F401 - not needed where the package is installed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS, BATCH, FEATURES, CLASSES = 40, 48, 32, 4


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 62), torch.nn.Tanh(), torch.nn.Linear(62, CLASSES))


def losses(model, part, parts):
    generator = torch.Generator().manual_seed(2)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    for _ in range(STEPS):
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        inputs = centres[labels] + torch.randn(BATCH, FEATURES, generator=generator)
        yield torch.nn.functional.cross_entropy(model(inputs[part::parts]), labels[part::parts])


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def train_divided(model, stage):
    """Stages 1 and 2, with the parameters as one vector, filled up so that all parts are alike."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = sum(parameter.numel() for parameter in model.parameters())
    length = -(-count // size)
    padded = torch.zeros(length * size)
    own = torch.nn.Parameter(torch.zeros(length))
    optimizer = adam([own])
    for loss in losses(model, rank, size):
        model.zero_grad()
        loss.backward()
        padded[:count] = parameters_to_vector(parameter.grad for parameter in model.parameters())
        if stage == 1:
            dist.all_reduce(padded, dist.ReduceOp.AVG)
            own.grad = padded[rank * length:(rank + 1) * length].clone()
        else:
            own.grad = torch.empty(length)
            dist.reduce_scatter_tensor(own.grad, padded, dist.ReduceOp.AVG)
        with torch.no_grad():
            padded[:count] = parameters_to_vector(model.parameters())
            own.copy_(padded[rank * length:(rank + 1) * length])
            optimizer.step()
            dist.all_gather_into_tensor(padded, own.detach())
            vector_to_parameters(padded[:count].clone(), model.parameters())  # which become views of it
    return parameters_to_vector(model.parameters()).detach()


def train_sharded(model):
    """Stage 3."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adam(model.parameters())
    for loss in losses(model, dist.get_rank(), dist.get_world_size()):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return parameters_to_vector(parameter.full_tensor() for parameter in model.parameters()).detach()


def train_alone(model):
    optimizer = adam(model.parameters())
    for loss in losses(model, 0, 1):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


def main():
    dist.init_process_group("treering")
    size = dist.get_world_size()
    if BATCH % size:
        sys.exit(f"{size} ranks: give a number that divides {BATCH}")
    alone = train_alone(make_model())
    differences = [(trained - alone).abs().max().item()
                   for trained in (train_divided(make_model(), 1), train_divided(make_model(), 2), train_sharded(make_model()))]
    if dist.get_rank() == 0:
        for stage, difference in enumerate(differences, 1):
            print(f"{size} ranks, stage {stage}: largest difference to one process {difference:.1e}")
    dist.destroy_process_group()
    return 0 if max(differences) < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
