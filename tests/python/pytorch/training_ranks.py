# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training: the model is that of a single process that sees all data."""
import unittest

import members
import torch
import torch.distributed as dist
from members import rank, same, size
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 5, 8


def make_model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
                               torch.nn.Linear(64, 3))


def batch_of(step, of_rank):
    generator = torch.Generator().manual_seed(1000 * step + of_rank)
    return torch.randn(BATCH, 20, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def own_batches():
    return [batch_of(step, rank()) for step in range(STEPS)]


def single_process():
    batches = []
    for step in range(STEPS):
        parts = [batch_of(step, each) for each in range(size())]
        batches.append((torch.cat([inputs for inputs, _ in parts]), torch.cat([targets for _, targets in parts])))
    return list(train(make_model(), batches).parameters())


class Training(unittest.TestCase):
    def compare(self, parameters, tolerance=1e-4):
        for got, wanted in zip(parameters, single_process()):
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance / 100)

    def test_data_parallel(self):
        # Buckets of a few KB: several are under way at a time.
        model = train(DistributedDataParallel(make_model(), bucket_cap_mb=0.005), own_batches())
        self.compare(model.parameters())
        for parameter in model.parameters():
            other = parameter.detach().clone()
            dist.broadcast(other, 0)
            same(other, parameter.detach())

    def test_hook(self):
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        self.compare(train(model, own_batches()).parameters(), 0.1)

    def test_fully_sharded(self):
        mesh = init_device_mesh("cpu", (size(),))
        model = make_model()
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        train(fully_shard(model, mesh=mesh), own_batches())
        self.compare([parameter.full_tensor() for parameter in model.parameters()])

    def test_data_loader(self):
        """Its workers are forked from a process with a group, and harm nothing."""
        inputs, targets = zip(*own_batches())
        loader = DataLoader(TensorDataset(torch.cat(inputs), torch.cat(targets)), batch_size=BATCH, num_workers=2)
        self.compare(train(DistributedDataParallel(make_model()), loader).parameters())


if __name__ == "__main__":
    members.main()
