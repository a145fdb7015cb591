# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: gradients are averaged over the ranks while the rest of them is computed."""
import collections
import contextlib
import os
import warnings

import torch
import torch.distributed as dist

from . import _job
from ._calls import Average, Op, Sum, reduce_tensors
from .compression import Compression

# The size of gradients that travel as one: Horovod's variable, with a smaller default, as the library fuses small ones, too.
FUSION_BYTES = 4 << 20


def fusion_bytes():
    text = os.environ.get("HOROVOD_FUSION_THRESHOLD", "")
    if not text:
        return FUSION_BYTES
    if not text.isdigit():
        raise ValueError(f"HOROVOD_FUSION_THRESHOLD is {text!r}; a number of bytes is wanted")
    return int(text)


class _Bucket:
    def __init__(self, parameters):
        self.parameters = parameters
        self.handle = None


def _buckets(parameters, groups):
    """Lists of parameters, the last ones first: backward() computes theirs first. All ranks make the same."""
    if groups is not None:
        wanted = [list(group) for group in groups]
        named = {parameter for group in wanted for parameter in group}
        return [_Bucket(group) for group in wanted] + [_Bucket([each]) for each in reversed(parameters) if each not in named]
    buckets, bytes_of_last, limit = [], None, fusion_bytes()
    for parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        is_alike = buckets and buckets[-1].parameters[0].dtype == parameter.dtype
        if is_alike and bytes_of_last + size <= limit:
            buckets[-1].parameters.append(parameter)
            bytes_of_last += size
        else:
            buckets.append(_Bucket([parameter]))
            bytes_of_last = size
    return buckets


class _Distributed:
    """In front of the class of an optimizer."""

    def _begin(self, parameters, names, compression, passes, op, predivide, groups):
        self._compression = compression
        self._passes = passes
        self._op = op
        self._predivide = predivide
        self._names = names
        self._buckets = _buckets(parameters, groups)
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._passes_left = dict.fromkeys(self._bucket_of, passes)
        self._next = 0  # the first bucket that has not been started: all ranks start them in this order
        self._is_synchronized = False
        self._synchronizes = True
        if _job.size() > 1:
            # Ranks that use different parameters start their buckets at different moments, between other calls.
            self._group = dist.new_group()
            for parameter in self._bucket_of:
                parameter.register_post_accumulate_grad_hook(self._is_ready)

    def _is_ready(self, parameter):
        if self._passes_left[parameter] <= 0:
            raise AssertionError("gradients were computed more than backward_passes_per_step times before step(); raise "
                                 "backward_passes_per_step")
        self._passes_left[parameter] -= 1
        self._start_ready_ones()

    def _start_ready_ones(self):
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if any(self._passes_left[parameter] > 0 for parameter in bucket.parameters):
                return
            self._start(bucket)

    def _start(self, bucket):
        gradients = []
        for parameter in bucket.parameters:
            if parameter.grad is None:  # other ranks may have one
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        before, after, op = 1.0, 1.0, self._op
        if self._predivide != 1.0:
            before, after, op = 1 / self._predivide, self._predivide / _job.size(), Sum
        name = self._names.get(bucket.parameters[0])
        bucket.handle = reduce_tensors(gradients, gradients, None, name, self._compression, op, before, after, self._group)
        self._next += 1

    def synchronize(self):
        """Waits for all averages, for example to clip the gradients before step()."""
        if _job.size() > 1:
            while self._next < len(self._buckets):
                self._start(self._buckets[self._next])
            for bucket in self._buckets:
                bucket.handle.result()
                bucket.handle = None
            self._next = 0
            self._passes_left = dict.fromkeys(self._bucket_of, self._passes)
        self._is_synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Around step(), where synchronize() was called before."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure=None):
        if closure is not None and _job.size() > 1:
            raise ValueError("step() with a closure is not there: its gradients would be used before they are averaged")
        if self._synchronizes and self._is_synchronized:
            warnings.warn("step() after synchronize(): the gradients are averages already, and are not averaged again; "
                          "\"with optimizer.skip_synchronize():\" says that this is meant", stacklevel=2)
        elif self._synchronizes:
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)

    step.hooked = True  # PyTorch would call the user's hooks here and in the optimizer's own step

    def zero_grad(self, *arguments, **named):
        if any(left != self._passes for left in self._passes_left.values()):
            raise AssertionError("zero_grad() was called after backward() and before step() or synchronize(): gradients are "
                                 "under way")
        return super().zero_grad(*arguments, **named)


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1, op=Average,  # noqa: N802
                         gradient_predivide_factor=1.0, num_groups=0, groups=None):
    """The optimizer, as one whose step() uses the ranks' averages, and that computes them during backward().

    named_parameters: checked for doubled names; all parameters of the optimizer take part.
    backward_passes_per_step: so many gradients are added before they are averaged.
    gradient_predivide_factor: with op=Average, gradients are divided by it before the sum, and the rest is done afterwards.
    groups: lists of parameters that travel as one, or into how many they are divided; num_groups: the latter.
    """
    _job.rank()
    if not isinstance(op, Op):
        raise ValueError(f"op is {op!r}; Average, Sum, Min, Max or Product is wanted")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor is given with another op than Average")
    if num_groups and groups is not None:
        raise ValueError("num_groups and groups are both given; give one")
    named = list(named_parameters or [])
    doubled = sorted(name for name, times in collections.Counter(name for name, _ in named).items() if times > 1)
    if doubled:
        raise ValueError(f"named_parameters has several parameters of the names {', '.join(doubled)}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    if isinstance(groups, int):
        num_groups, groups = groups, None
    if groups is not None:
        groups = [[parameter for parameter in group if parameter.requires_grad] for group in groups]
    if num_groups:
        backwards = parameters[::-1]
        length = -(-len(backwards) // num_groups)
        groups = [backwards[begin:begin + length] for begin in range(0, len(backwards), length)]
    kind = type(optimizer.__class__.__name__, (_Distributed, optimizer.__class__), {})
    made = kind.__new__(kind)  # has the optimizer's parameters and state, and none of its own
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a scheduler's, which is bound to the optimizer itself
    made._begin(parameters, {parameter: name for name, parameter in named}, compression, backward_passes_per_step, op, gradient_predivide_factor, groups)
    return made
