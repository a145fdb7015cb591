# SPDX-License-Identifier: Apache-2.0
"""Collectives by Horovod's names. Ranks give the same calls in the same order; names only stand in the timeline."""
import enum

import torch
import torch.distributed as dist

from . import _job, _timeline
from .compression import Compression


class Op(enum.Enum):
    AVERAGE = dist.ReduceOp.AVG
    SUM = dist.ReduceOp.SUM
    MIN = dist.ReduceOp.MIN
    MAX = dist.ReduceOp.MAX
    PRODUCT = dist.ReduceOp.PRODUCT


Average, Sum, Min, Max, Product = Op.AVERAGE, Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT


class Handle:
    """A call under way: what *_async() gives, and synchronize() and poll() take."""

    def __init__(self, work, finish, event=None):
        self._work = work
        self._finish = finish
        self._result = None
        self._event = event

    def is_done(self):
        return self._work is None or self._work.is_completed()

    def result(self):
        if self._work is not None:
            self._work.wait()
            _timeline.end(self._event)
            self._result = self._finish()
            self._work = self._finish = None
        return self._result


def synchronize(handle):
    """Waits for the call, and gives its result."""
    return handle.result()


def poll(handle):
    """Whether synchronize() would not wait."""
    return handle.is_done()


def _operation(average, op):
    if average is not None:
        if op is not None:
            raise ValueError("average and op are both given; give op")
        return Average if average else Sum
    if op is not None and not isinstance(op, Op):
        raise ValueError(f"op is {op!r}; Average, Sum, Min, Max or Product is wanted")
    return Average if op is None else op


def _start_reduce(tensors, op, name, group):
    """Sums the tensors in place, as one unit of work."""
    event = _timeline.begin("allreduce", name, tensors)
    kinds = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    return _Works([_sum_alike(alike, op, group) for alike in kinds.values()]), event


def _sum_alike(tensors, op, group):
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op.value
    options.asyncOp = True
    return (group or dist.group.WORLD).allreduce_coalesced(tensors, options)


class _Works:
    """Several works as one: tensors of one type each."""

    def __init__(self, works):
        self._works = works

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def wait(self):
        for work in self._works:
            work.wait()


@torch.no_grad()
def reduce_tensors(tensors, outputs, average, name, compression, op, prescale, postscale, group=None):
    """Handle of a list: `outputs`, which may be the tensors themselves."""
    _job.rank()
    op = _operation(average, op)
    sent, contexts = [], []
    for tensor, output in zip(tensors, outputs):
        if output is not tensor:
            output.copy_(tensor)
        if prescale != 1.0:
            output.mul_(prescale)
        compressed, context = compression.compress(output)
        sent.append(compressed)
        contexts.append(context)
    work, event = _start_reduce(sent, op, name, group)

    @torch.no_grad()
    def finish():
        for output, compressed, context in zip(outputs, sent, contexts):
            if compressed is not output:
                output.copy_(compression.decompress(compressed, context))
            if postscale != 1.0:
                output.mul_(postscale)
        return outputs

    return Handle(work, finish, event)


def _first_of(handle):
    """The handle of a list of one, as one of its tensor."""
    finish = handle._finish
    handle._finish = lambda: finish()[0]
    return handle


def _copies(tensors):
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                             compression=Compression.none):
    tensors = list(tensors)
    return reduce_tensors(tensors, tensors, average, name, compression, op, prescale_factor, postscale_factor)


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                            compression=Compression.none):
    tensors = list(tensors)
    return reduce_tensors(tensors, _copies(tensors), average, name, compression, op, prescale_factor, postscale_factor)


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
                      postscale_factor=1.0):
    return grouped_allreduce_async(tensors, average, name, op, prescale_factor, postscale_factor, compression).result()


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor).result()


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return _first_of(grouped_allreduce_async_([tensor], average, name, op, prescale_factor, postscale_factor))


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return _first_of(grouped_allreduce_async([tensor], average, name, op, prescale_factor, postscale_factor))


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor).result()


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
              postscale_factor=1.0):
    """The average over the ranks, or what `op` says, as a new tensor. Gradients do not flow through it."""
    return grouped_allreduce([tensor.detach()], average, name, compression, op, prescale_factor, postscale_factor)[0]


def broadcast_async_(tensor, root_rank, name=None):
    _job.rank()
    event = _timeline.begin("broadcast", name, [tensor])
    return Handle(dist.broadcast(tensor, root_rank, async_op=True), lambda: tensor, event)


def broadcast_async(tensor, root_rank, name=None):
    return broadcast_async_(tensor.detach().clone(memory_format=torch.contiguous_format), root_rank, name)


def broadcast_(tensor, root_rank, name=None):
    return broadcast_async_(tensor, root_rank, name).result()


def broadcast(tensor, root_rank, name=None):
    return broadcast_async(tensor, root_rank, name).result()


def _counts_of_all(count):
    counts = torch.empty(_job.size(), dtype=torch.int64)
    dist.all_gather_into_tensor(counts, torch.tensor([count]))
    return counts.tolist()


def allgather_async(tensor, name=None):
    """The ranks' tensors one after another. They may differ in the first dimension."""
    if tensor.dim() == 0:
        raise ValueError("allgather: the tensor has no dimension along which the ranks' tensors could be joined")
    tensor = tensor.detach().contiguous()
    rows = _counts_of_all(tensor.shape[0])
    output = tensor.new_empty((sum(rows), *tensor.shape[1:]))
    event = _timeline.begin("allgather", name, [output])
    work = dist.all_gather(list(output.split(rows)), tensor, async_op=True)
    return Handle(work, lambda: output, event)


def allgather(tensor, name=None):
    return allgather_async(tensor, name).result()


def alltoall_async(tensor, splits=None, name=None):
    """Sends splits[i] rows to rank i. With splits the result is a pair: the tensor, and how many rows came from each rank."""
    tensor = tensor.detach().contiguous()
    ranks = _job.size()
    if splits is None:
        if tensor.shape[0] % ranks != 0:
            raise ValueError(f"alltoall: the tensor has {tensor.shape[0]} rows, which cannot be divided among {ranks} ranks; give splits")
        sent = [tensor.shape[0] // ranks] * ranks
    else:
        sent = [int(count) for count in splits]
        if len(sent) != ranks or sum(sent) != tensor.shape[0]:
            raise ValueError(f"alltoall: splits are {sent}; {ranks} numbers with the sum {tensor.shape[0]} are wanted")
    came = torch.empty(ranks, dtype=torch.int64)
    dist.all_to_all_single(came, torch.tensor(sent))
    output = tensor.new_empty((int(came.sum()), *tensor.shape[1:]))
    event = _timeline.begin("alltoall", name, [output])
    work = dist.all_to_all_single(output, tensor, came.tolist(), sent, async_op=True)
    return Handle(work, lambda: output if splits is None else (output, came.to(torch.int32)), event)


def alltoall(tensor, splits=None, name=None):
    return alltoall_async(tensor, splits, name).result()


def reducescatter_async(tensor, name=None, op=Average):
    """This rank's rows of the average: the first ranks get one more where the rows cannot be divided."""
    tensor = tensor.detach().contiguous()
    base, more = divmod(tensor.shape[0], _job.size())
    rows = [base + (each < more) for each in range(_job.size())]
    event = _timeline.begin("reducescatter", name, [tensor])
    if more == 0:
        output = tensor.new_empty((base, *tensor.shape[1:]))
        return Handle(dist.reduce_scatter_tensor(output, tensor, _operation(None, op).value, async_op=True), lambda: output, event)
    total = tensor.clone()
    work = dist.all_reduce(total, _operation(None, op).value, async_op=True)
    return Handle(work, lambda: total.split(rows)[_job.rank()].clone(), event)


def reducescatter(tensor, name=None, compression=Compression.none, op=Average):
    sent, context = compression.compress(tensor)
    return compression.decompress(reducescatter_async(sent, name, op).result(), context)


def barrier():
    _job.rank()
    dist.barrier()


def broadcast_object(obj, root_rank=0, name=None):
    """The root's object, pickled; every rank gets one of its own."""
    _job.rank()
    objects = [obj]
    dist.broadcast_object_list(objects, root_rank)
    return objects[0]


def allgather_object(obj, name=None):
    objects = [None] * _job.size()
    dist.all_gather_object(objects, obj)
    return objects
