#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sixteen times the batch: LAMB, a learning rate that grows with the batch, and warm-up; compared with the small batch on one process.

    torchrun --nproc-per-node 2 train.py

    linear scaling   k times the batch, k times the learning rate (Goyal et al., Accurate, large minibatch SGD, 2017)
    warm-up          from the small batch's rate to that over the first steps (the same)
    LAMB             each layer's step has the length of its weights times the rate (You et al., ICLR 2020, algorithm 2)

Both train for the same number of epochs. Ends with status 0 when the large batch's accuracy is at most one percent lower.
"""
import sys

import torch
import torch.distributed as dist
import treering.torch  # noqa: F401 - not needed where the package is installed
from torch.nn.parallel import DistributedDataParallel

SMALL, FACTOR, EPOCHS, SAMPLES, FEATURES, CLASSES = 16, 16, 12, 4096, 24, 10
RATE, SMALL_RATE, WARM_UP = 0.0015, 0.01, 0.2  # RATE: LAMB's at the small batch
LARGE = SMALL * FACTOR


class Lamb(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                state["step"] += 1
                for name, value, beta in (("mean", parameter.grad, group["betas"][0]), ("square", parameter.grad**2, group["betas"][1])):
                    state[name].lerp_(value, 1 - beta)
                mean, square = (state[name] / (1 - beta**state["step"]) for name, beta in zip(("mean", "square"), group["betas"]))
                update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * parameter
                length, wanted = update.norm(), parameter.norm()
                trust = wanted / length if length > 0 and wanted > 0 else 1.0
                parameter.sub_(group["lr"] * trust * update)


def make_data(seed, samples):
    """Classes that no plane divides: which is the nearest of three centres of each class."""
    centres = 0.9 * torch.randn(3 * CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(3 * CLASSES, (samples,), generator=generator)
    return centres[which] + torch.randn(samples, FEATURES, generator=generator), which % CLASSES


def make_model():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 96), torch.nn.ReLU(), torch.nn.Linear(96, CLASSES))


def train(model, optimizer, batch, part=0, parts=1, schedule=None):
    inputs, labels = make_data(3, SAMPLES)
    generator = torch.Generator().manual_seed(4)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(SAMPLES, generator=generator).split(batch):
            own = chosen[part::parts]
            loss = torch.nn.functional.cross_entropy(model(inputs[own]), labels[own])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()


def accuracy(model):
    inputs, labels = make_data(5, SAMPLES)
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


def train_large():
    model = DistributedDataParallel(make_model())
    optimizer = Lamb(model.parameters(), lr=RATE * FACTOR)
    steps = EPOCHS * SAMPLES // LARGE

    def factor(step):
        """The factor of the rate: it rises to 1, and then falls."""
        warm = WARM_UP * steps
        return max(1 / FACTOR, step / warm) if step < warm else (steps - step) / (steps - warm)

    train(model, optimizer, LARGE, dist.get_rank(), dist.get_world_size(), torch.optim.lr_scheduler.LambdaLR(optimizer, factor))
    return accuracy(model)


def train_small():
    model = make_model()
    train(model, torch.optim.SGD(model.parameters(), lr=SMALL_RATE, momentum=0.9), SMALL)
    return accuracy(model)


def main():
    dist.init_process_group("treering")
    if LARGE % dist.get_world_size():
        sys.exit(f"{dist.get_world_size()} ranks: give a number that divides {LARGE}")
    large, small = train_large(), train_small()
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, batch {LARGE}: accuracy {large:.4f}; one process, batch {SMALL}: {small:.4f}")
    dist.destroy_process_group()
    return 0 if large > small - 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
