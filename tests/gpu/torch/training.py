# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training: the model is that of a single process that sees all data."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 5, 8


def make_model(device):
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
                               torch.nn.Linear(64, 3)).to(device)


def batch_of(step, rank, device):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(BATCH, 20, generator=generator).to(device),
            torch.randint(0, 3, (BATCH,), generator=generator).to(device))


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def single_process(c):
    batches = []
    for step in range(STEPS):
        parts = [batch_of(step, rank, c.device) for rank in range(c.size)]
        batches.append((torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])))
    return train(make_model(c.device), batches)


def compare(parameters, wanted, what):
    for got, expected in zip(parameters, wanted):
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-6), \
            f"{what}: parameters differ by {(got - expected).abs().max()}"


def own_batches(c):
    return [batch_of(step, c.rank, c.device) for step in range(STEPS)]


def check_ddp(c):
    model = train(DistributedDataParallel(make_model(c.device)), own_batches(c))
    compare(model.parameters(), single_process(c).parameters(), "DDP")


def check_fsdp(c):
    mesh = init_device_mesh(c.device.type, (c.size,))
    model = make_model(c.device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    train(fully_shard(model, mesh=mesh), own_batches(c))
    compare([p.full_tensor() for p in model.parameters()], single_process(c).parameters(), "FSDP")


CHECKS = [check_ddp, check_fsdp]
