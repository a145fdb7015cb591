#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gloo and treering as backends of torch.distributed, in turns in one run, for tensors of the CPU.

    torchrun --nproc-per-node 2 bench/torch/compare.py [--rounds N] [--only NAME] [--max-bytes N]

Prints, for each call and size, the median over the rounds of the time of a call with each backend, and gloo's time divided by
treering's. One thread each. With more ranks than processors, both wait for the turns of other ranks.
"""
import argparse
import math
import platform
import statistics
import time

import torch
import torch.distributed as dist

import treering.torch

KIB = 1024
SMALL = (8, 64, 512, 4 * KIB)
SIZES = (*SMALL, 32 * KIB, 256 * KIB, KIB * KIB, 4 * KIB * KIB, 16 * KIB * KIB, 64 * KIB * KIB)
BLOCK_SIZES = (8, 512, 4 * KIB, 256 * KIB, 4 * KIB * KIB, 16 * KIB * KIB)
ROUND_SECONDS = 0.02
MAX_CALLS = 500


def floats(size):
    return torch.ones(max(size // 4, 1))


def all_reduce(size, group):
    x = floats(size)
    return lambda: dist.all_reduce(x, group=group)


def all_reduce_async(size, group):
    x = floats(size)
    return lambda: dist.all_reduce(x, group=group, async_op=True).wait()


def all_gather(size, group):
    x, out = floats(size), torch.empty(max(size // 4, 1) * dist.get_world_size())
    return lambda: dist.all_gather_into_tensor(out, x, group=group)


def reduce_scatter(size, group):
    out, x = floats(size), torch.ones(max(size // 4, 1) * dist.get_world_size())
    return lambda: dist.reduce_scatter_tensor(out, x, group=group)


def broadcast(size, group):
    x, turn = floats(size), [0]

    def call():
        turn[0] = (turn[0] + 1) % dist.get_world_size()  # or the root would run ahead
        dist.broadcast(x, turn[0], group=group)

    return call


def all_to_all(size, group):
    blocks = max(size // 4, 1) * dist.get_world_size()
    x, out = torch.ones(blocks), torch.empty(blocks)
    return lambda: dist.all_to_all_single(out, x, group=group)


def send_and_receive(size, group):
    x, out = floats(size), floats(size)
    right, left = (dist.get_rank() + 1) % dist.get_world_size(), (dist.get_rank() - 1) % dist.get_world_size()

    def call():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right, group), dist.P2POp(dist.irecv, out, left, group)]):
            work.wait()

    return call


CALLS = {
    "all_reduce": (all_reduce, SIZES),
    "all_reduce, async_op": (all_reduce_async, SIZES),
    "all_gather_into_tensor": (all_gather, BLOCK_SIZES),
    "reduce_scatter_tensor": (reduce_scatter, BLOCK_SIZES),
    "broadcast": (broadcast, BLOCK_SIZES),
    "all_to_all_single": (all_to_all, BLOCK_SIZES),
    "batch_isend_irecv": (send_and_receive, BLOCK_SIZES),
}


def seconds_of(call, times):
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def calls_a_round(call):
    """The same number on all ranks: that of the slowest."""
    number = torch.tensor([min(max(ROUND_SECONDS / max(seconds_of(call, 3), 1e-9), 1.0), float(MAX_CALLS))])
    dist.all_reduce(number, dist.ReduceOp.MIN)
    return int(number.item())


def compare(make, size, groups, rounds):
    calls = {name: make(size, group) for name, group in groups.items()}
    for call in calls.values():
        seconds_of(call, 2)  # connections, memory
    times = {name: calls_a_round(call) for name, call in calls.items()}
    seconds = {name: [] for name in groups}
    for _ in range(rounds):
        for name, call in calls.items():
            dist.barrier()
            seconds[name].append(seconds_of(call, times[name]))
    return {name: statistics.median(values) for name, values in seconds.items()}


def gradients_only(model, inputs):
    model(inputs).square().mean().backward()


def data_parallel(make_model, inputs, groups, rounds):
    """What DDP adds to a step without synchronisation."""
    models = {name: torch.nn.parallel.DistributedDataParallel(make_model(), process_group=group) for name, group in groups.items()}
    added = {name: [] for name in groups}
    for turn in range(rounds + 2):  # the first ones divide the buckets
        for name, model in models.items():
            dist.barrier()
            with_exchange = seconds_of(lambda: gradients_only(model, inputs), 2)
            with model.no_sync():
                without = seconds_of(lambda: gradients_only(model, inputs), 2)
            if turn >= 2:
                added[name].append(with_exchange - without)
    return {name: statistics.median(values) for name, values in added.items()}


def wide():
    return torch.nn.Sequential(*(torch.nn.Linear(2240, 2240) for _ in range(5)))


def convolutional():
    layers = []
    for channels in ((1, 16), (16, 32), (32, 32)):
        layers += [torch.nn.Conv2d(*channels, 3, padding=1), torch.nn.BatchNorm2d(channels[1]), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(32 * 64, 10))


def row(name, size, seconds):
    ratio = seconds["gloo"] / seconds["treering"] if min(seconds.values()) > 0 else math.nan
    if dist.get_rank() == 0:
        print(f"{name:<24} {size:>10} {seconds['gloo'] * 1e6:>12.1f} {seconds['treering'] * 1e6:>12.1f} {ratio:>8.2f}", flush=True)
    return ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="of both backends, for each call and size (15)")
    parser.add_argument("--only", default="", help="calls whose name has this in it")
    parser.add_argument("--max-bytes", type=int, default=max(SIZES), help="larger sizes are left out")
    parser.add_argument("--version", action="version", version=f"%(prog)s {treering.__version__}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {"gloo": dist.group.WORLD, treering.torch.NAME: dist.new_group(backend=treering.torch.NAME)}
    if dist.get_rank() == 0:
        print(f"# PyTorch {torch.__version__}, treering {treering.__version__}, {dist.get_world_size()} ranks, {platform.machine()}")
        print(f"{'call':<24} {'bytes':>10} {'gloo us':>12} {'treering us':>12} {'ratio':>8}")
    ratios = []
    for name, (make, sizes) in CALLS.items():
        for size in sizes:
            if options.only in name and size <= options.max_bytes:
                ratios.append(row(name, size, compare(make, size, groups, options.rounds)))
    for name, make, inputs in (("DDP adds, 25 M values", wide, torch.randn(4, 2240)),
                               ("DDP adds, convolutional", convolutional, torch.randn(16, 1, 8, 8))):
        if options.only in name:
            values = sum(parameter.numel() for parameter in make().parameters())
            row(name, 4 * values, data_parallel(make, inputs, groups, options.rounds))  # a difference, which may be none
    if ratios and dist.get_rank() == 0:
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        print(f"# geometric mean {mean:.2f}, least {min(ratios):.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
