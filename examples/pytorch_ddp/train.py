#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training of a small model with PyTorch, whose gradients travel through libnccl.so.2.

    LD_PRELOAD=PREFIX/lib/treering/nccl/lib/libnccl.so.2 torchrun --nproc_per_node 2 train.py

Every process trains on its share of each batch; afterwards rank 0 trains alone on the whole batches, and the two models
must agree to rounding. With fewer GPUs than processes they share GPUs. `--backend gloo` runs the same on the CPU, without
this library, to try the program itself. Ends with status 0 when the models agree.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FEATURES, CLASSES, BATCH = 64, 10, 96


def make_model(device):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, CLASSES)).to(device)


def batches(steps, device):
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        inputs = torch.randn(BATCH, FEATURES, generator=generator)
        yield inputs.to(device), torch.randint(CLASSES, (BATCH,), generator=generator).to(device)


def train(model, steps, device, share):
    """`share`: (index, of how many) of each batch. The loss after the last step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, labels in batches(steps, device):
        index, parts = share
        loss = torch.nn.functional.cross_entropy(model(inputs[index::parts]), labels[index::parts])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    if "RANK" not in os.environ:
        sys.exit("start this with torchrun: torchrun --nproc_per_node 2 train.py")
    if options.backend == "nccl" and not torch.cuda.is_available():
        sys.exit("no GPU: the nccl backend needs one; --backend gloo runs on the CPU")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if BATCH % ranks:
        sys.exit(f"{ranks} processes: give a number that divides {BATCH}")
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    model = DistributedDataParallel(make_model(device))
    loss = train(model, options.steps, device, (rank, ranks))
    difference = torch.zeros(1, device=device)
    if rank == 0:
        alone = make_model(device)
        train(alone, options.steps, device, (0, 1))
        pairs = zip(model.module.parameters(), alone.parameters(), strict=True)
        difference[0] = max((a - b).abs().max() for a, b in pairs)
    dist.broadcast(difference, 0)
    if rank == 0:
        print(f"{ranks} processes, {options.backend}: loss {loss:.4f}; largest difference to one process "
              f"{difference.item():.2e}")
    dist.destroy_process_group()
    return 0 if difference.item() < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
