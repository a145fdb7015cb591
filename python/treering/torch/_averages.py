# SPDX-License-Identifier: Apache-2.0
"""Averages of gradients over the ranks of a group, compressed or not."""
import torch
import torch.distributed as dist

from . import load


class Averages:
    """What rounding took is kept by parameter: buckets may change."""

    def __init__(self, group, wire, error_feedback):
        self._group = group
        self._wire = wire
        self._error_feedback = bool(error_feedback)
        self._compressions = {}
        if wire is not None:
            load().Compression(wire, False, 0)  # a wrong wire type is an error here
        elif error_feedback:
            raise ValueError("error_feedback is given without a wire type, and nothing is rounded; name one, as in wire=\"fp16\"")

    def start(self, parameters, gradients):
        """The work that averages the gradients in place. All ranks give the same parameters, in the same order."""
        group = self._group if self._group is not None else dist.group.WORLD
        backend = group._get_backend(gradients[0].device)
        return load().average(backend, gradients, [self._of(*both) for both in zip(parameters, gradients)])

    def _of(self, parameter, gradient):
        if self._wire is None or gradient.dtype != torch.float32:
            return None
        if parameter not in self._compressions:
            self._compressions[parameter] = load().Compression(self._wire, self._error_feedback, gradient.numel())
        return self._compressions[parameter]
