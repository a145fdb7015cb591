# SPDX-License-Identifier: Apache-2.0
"""All collectives of torch.distributed, and sends and receives, in all types."""

import torch
import torch.distributed as dist

from checks import FLOATS, SIZES, same


def check_all_reduce(c):
    for dtype in c.reduced_types:
        for count in SIZES:
            data = c.values(c.rank, count, dtype)
            dist.all_reduce(data)
            same(data, c.sum(count, dtype), f"all_reduce sum {dtype} {count}")
    everyone = torch.stack([c.values(rank, 1000, torch.float64) for rank in range(c.size)])
    for op, wanted in ((dist.ReduceOp.MAX, everyone.max(0).values), (dist.ReduceOp.MIN, everyone.min(0).values),
                       (dist.ReduceOp.PRODUCT, everyone.prod(0))):
        for dtype in (torch.int64, torch.float32, torch.float64):
            data = c.values(c.rank, 1000, dtype)
            dist.all_reduce(data, op)
            same(data, wanted.to(dtype), f"all_reduce {op} {dtype}")
    handle = dist.all_reduce(data := c.values(c.rank, 1000, torch.float32), async_op=True)
    handle.wait()
    same(data, c.sum(1000, torch.float32), "all_reduce async")
    if c.has("average"):
        for dtype in FLOATS:
            data = c.values(c.rank, 1000, dtype)
            dist.all_reduce(data, dist.ReduceOp.AVG)
            wanted = (c.sum(1000, torch.float64) / c.size).to(dtype)
            assert torch.allclose(data.double(), wanted.double(), rtol=1e-2), f"all_reduce avg {dtype}"
    if c.has("premul_sum"):
        data = c.values(c.rank, 1000, torch.float32)
        dist.all_reduce(data, dist._make_nccl_premul_sum(0.5))
        same(data, c.sum(1000, torch.float64).mul(0.5).float(), "all_reduce premul_sum")


def check_reduce_and_broadcast(c):
    for root in range(c.size):
        for dtype in c.reduced_types:
            data = c.values(c.rank, 1000, dtype)
            dist.reduce(data, root)
            if c.rank == root:
                same(data, c.sum(1000, dtype), f"reduce {dtype} to {root}")
        for dtype in c.moved_types:
            data = c.values(c.rank, 1000, dtype)
            dist.broadcast(data, root)
            same(data, c.values(root, 1000, dtype), f"broadcast {dtype} from {root}")


def check_all_gather(c):
    for dtype in c.moved_types:
        for count in SIZES:
            own = c.values(c.rank, count, dtype)
            parts = [c.empty(count, dtype) for _ in range(c.size)]
            dist.all_gather(parts, own)
            for rank, part in enumerate(parts):
                same(part, c.values(rank, count, dtype), f"all_gather {dtype} {count}")
            whole = c.empty(count * c.size, dtype)
            dist.all_gather_into_tensor(whole, own)
            for rank, part in enumerate(whole.chunk(c.size)):
                same(part, c.values(rank, count, dtype), f"all_gather_into_tensor {dtype} {count}")


def check_reduce_scatter(c):
    for dtype in c.reduced_types:
        for count in SIZES:
            parts = [c.values(c.rank, count, dtype, block) for block in range(c.size)]
            wanted = c.sum(count, dtype, c.rank)
            own = c.empty(count, dtype)
            dist.reduce_scatter(own, parts)
            same(own, wanted, f"reduce_scatter {dtype} {count}")
            own = c.empty(count, dtype)
            dist.reduce_scatter_tensor(own, torch.cat(parts))
            same(own, wanted, f"reduce_scatter_tensor {dtype} {count}")


def check_all_to_all(c):
    for dtype in c.moved_types:
        count = 1000
        parts = [c.values(c.rank, count, dtype, block) for block in range(c.size)]
        wanted = [c.values(rank, count, dtype, c.rank) for rank in range(c.size)]
        got = c.empty(count * c.size, dtype)
        dist.all_to_all_single(got, torch.cat(parts))
        for rank, part in enumerate(got.chunk(c.size)):
            same(part, wanted[rank], f"all_to_all_single {dtype}")
        if c.has("all_to_all"):
            outputs = [c.empty(count, dtype) for _ in range(c.size)]
            dist.all_to_all(outputs, parts)
            for rank, part in enumerate(outputs):
                same(part, wanted[rank], f"all_to_all {dtype}")
    # Rank r sends 10 * (r + 1) + d elements to rank d.
    sent = [10 * (c.rank + 1) + to for to in range(c.size)]
    received = [10 * (source + 1) + c.rank for source in range(c.size)]
    data = torch.cat([c.values(c.rank, n, torch.float32, to) for to, n in enumerate(sent)])
    got = c.empty(sum(received), torch.float32)
    dist.all_to_all_single(got, data, received, sent)
    for source, part in enumerate(got.split(received)):
        same(part, c.values(source, received[source], torch.float32, c.rank), "all_to_all_single with counts")


def check_gather_and_scatter(c):
    for root in (0, c.size - 1):
        for dtype in c.moved_types:
            own = c.values(c.rank, 1000, dtype)
            parts = [c.empty(1000, dtype) for _ in range(c.size)] if c.rank == root else None
            dist.gather(own, parts, root)
            for rank, part in enumerate(parts or []):
                same(part, c.values(rank, 1000, dtype), f"gather {dtype} to {root}")
            blocks = [c.values(root, 1000, dtype, to) for to in range(c.size)] if c.rank == root else None
            got = c.empty(1000, dtype)
            dist.scatter(got, blocks, root)
            same(got, c.values(root, 1000, dtype, c.rank), f"scatter {dtype} from {root}")
    dist.barrier()


def check_send_and_receive(c):
    after, before = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    for dtype in c.moved_types:
        for count in SIZES:
            own, got = c.values(c.rank, count, dtype), c.empty(count, dtype)
            if c.rank % 2 == 0:
                dist.send(own, after)
                dist.recv(got, before)
            else:
                dist.recv(got, before)
                dist.send(own, after)
            same(got, c.values(before, count, dtype), f"send and recv {dtype} {count}")
            got = c.empty(count, dtype)
            work = dist.batch_isend_irecv([dist.P2POp(dist.isend, own, after), dist.P2POp(dist.irecv, got, before)])
            for handle in work:
                handle.wait()
            same(got, c.values(before, count, dtype), f"batch_isend_irecv {dtype} {count}")


def check_coalescing(c):
    if not c.has("coalescing"):
        return "skipped: not in gloo"
    data = [c.values(c.rank, count, torch.float32) for count in SIZES]
    with dist._coalescing_manager(device=c.device, async_ops=True) as manager:
        for tensor in data:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in data:
        same(tensor, c.sum(tensor.numel(), torch.float32), "all_reduce in a coalescing manager")
    own = [c.values(c.rank, count, torch.float32) for count in SIZES]
    whole = [c.empty(count * c.size, torch.float32) for count in SIZES]
    with dist._coalescing_manager(device=c.device, async_ops=True) as manager:
        for output, tensor in zip(whole, own):
            dist.all_gather_into_tensor(output, tensor)
    manager.wait()
    for output, tensor in zip(whole, own):
        for rank, part in enumerate(output.chunk(c.size)):
            same(part, c.values(rank, tensor.numel(), torch.float32), "all_gather_into_tensor in a coalescing manager")


CHECKS = [check_all_reduce, check_reduce_and_broadcast, check_all_gather, check_reduce_scatter, check_all_to_all,
          check_gather_and_scatter, check_send_and_receive, check_coalescing]
