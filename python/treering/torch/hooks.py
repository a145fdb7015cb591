# SPDX-License-Identifier: Apache-2.0
"""Communication hooks of DistributedDataParallel: gradients that travel compressed, or one step late.

    model = DistributedDataParallel(...)
    model.register_comm_hook(hooks.Compression("bf16"), hooks.compress)
    model.register_comm_hook(hooks.Late("fp16"), hooks.late)            # or this one

Gradients of float32 are compressed; those of other types travel as they are. docs/compression.md has the wire types and
the bounds of their errors.
"""
import torch
import torch.distributed as dist

from ._averages import Averages

__all__ = ["Compression", "Late", "compress", "late"]


class Compression:
    """The state of compress().

    wire: "fp16", "bf16", "fp8-e4m3" or "fp8-e5m2".
    error_feedback: what rounding takes from this rank's gradients is added to those of the next step (Seide et al., 1-Bit
        SGD, Interspeech 2014). 8 bytes a value. It belongs to the parameter, whatever buckets DDP makes, so each travels
        by itself.
    group: the process group of the model; the default one where it is None. Its backend for the CPU must be treering.

    Raises ValueError for another wire type; backward() does so for another backend.
    """

    def __init__(self, wire, error_feedback=True, group=None):
        self._averages = Averages(group, wire, error_feedback)


def compress(state: Compression, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The average over the ranks, of gradients that travel compressed."""
    buffer = bucket.buffer()
    work = state._averages.start(bucket.parameters(), bucket.gradients())
    # A failure of the work is one of the future.
    return work.get_future().then(lambda done: (done.value(), buffer)[1])


class _Exchange:
    """Averages that are under way, in a buffer of their own."""

    def __init__(self, averages, parameters, gradients, buffer):
        self.buffer = buffer
        self._parts, begin = {}, 0
        for parameter, gradient in zip(parameters, gradients):
            self._parts[parameter] = buffer[begin:begin + gradient.numel()].view(gradient.shape)
            begin += gradient.numel()
        self._work = averages.start(parameters, list(self._parts.values()))

    def wait(self):
        if self._work is not None:
            self._work.wait()
            self._work = None

    def move(self, parameter, gradient):
        """Into `gradient`; True where it was the last parameter."""
        self.wait()
        gradient.copy_(self._parts.pop(parameter))
        return not self._parts


class Late:
    """The state of late(): while a step computes, the gradients of the step before travel.

    The first step gets zeros: an optimizer without weight decay leaves the parameters alone. finish() waits for the
    gradients of the last step, which no step gets. Two copies of the gradients are kept.

    wire, error_feedback, group: as of Compression; with wire=None gradients travel as they are.
    """

    def __init__(self, wire=None, error_feedback=False, group=None):
        self._averages = Averages(group, wire, error_feedback)
        self._under_way = {}  # parameter: its exchange. DDP may divide the parameters into other buckets after a step
        self._spare = {}  # (values, type, device): buffers

    def finish(self):
        """Waits for what is under way, and drops it."""
        for exchange in set(self._under_way.values()):
            exchange.wait()
        self._under_way.clear()

    def _take(self, parameter, gradient):
        """Writes the parameter's average of the step before into the place of this step's gradient."""
        exchange = self._under_way.pop(parameter, None)
        if exchange is None:
            gradient.zero_()
        elif exchange.move(parameter, gradient):
            self._spare.setdefault(_kind(exchange.buffer), []).append(exchange.buffer)

    def _start(self, parameters, gradients, buffer):
        for exchange in {self._under_way[parameter] for parameter in parameters if parameter in self._under_way}:
            exchange.wait()  # what is kept of a parameter's rounding is for one call at a time
        spare = self._spare.get(_kind(buffer))
        if spare:
            copy = spare.pop().copy_(buffer)
        else:
            self._spare.clear()  # of buckets that are no more
            copy = buffer.clone()
        return _Exchange(self._averages, parameters, gradients, copy)


def _kind(buffer):
    return buffer.numel(), buffer.dtype, buffer.device


def late(state: Late, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The average of the step before, while that of this step travels behind the computation."""
    parameters, gradients, buffer = bucket.parameters(), bucket.gradients(), bucket.buffer()
    exchange = state._start(parameters, gradients, buffer)
    for parameter, gradient in zip(parameters, gradients):
        state._take(parameter, gradient)
    state._under_way.update(dict.fromkeys(parameters, exchange))
    future = torch.futures.Future()
    future.set_result(buffer)
    return future
