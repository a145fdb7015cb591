# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose gradients are exchanged while the next step computes."""
import torch

from ._averages import Averages

__all__ = ["DoubleBuffer"]


class DoubleBuffer:
    """Wraps an optimizer; no DistributedDataParallel is needed.

        optimizer = DoubleBuffer(torch.optim.SGD(model.parameters(), lr=0.1))
        for inputs, targets in data:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
        optimizer.finish()

    step() begins to average this step's gradients over the ranks, and lets the optimizer use those of the step before. The
    first one leaves the parameters alone. finish() lets it use those of the last step.
    All ranks have the same parameters to begin with, and gradients for the same ones of them in each step.

    wire: "fp16", "bf16", "fp8-e4m3" or "fp8-e5m2": gradients of float32 travel so. None: as they are.
    error_feedback: what rounding takes from this rank's gradients is added to the next ones.
    group: the process group; its backend for the gradients' device must be treering.
    """

    def __init__(self, optimizer, wire=None, error_feedback=False, group=None):
        self.optimizer = optimizer
        self._averages = Averages(group, wire, error_feedback)
        self._under_way = []  # (parameter: its average; the work)
        self._spare = {}  # parameter: a tensor for its average

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self):
        for _, work in self._under_way:
            work.wait()  # what is kept of a parameter's rounding is for one call at a time
        before, self._under_way = self._under_way, self._start()
        self._apply(before)

    def finish(self):
        """After the last step."""
        before, self._under_way = self._under_way, []
        self._apply(before)

    def _parameters(self):
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _copy(self, parameter):
        spare = self._spare.pop(parameter, None)
        if spare is None:
            return parameter.grad.detach().clone(memory_format=torch.contiguous_format)
        return spare.copy_(parameter.grad)

    def _start(self):
        by_type = {}
        for parameter in self._parameters():
            if parameter.grad is not None:
                by_type.setdefault(parameter.grad.dtype, {})[parameter] = self._copy(parameter)
        return [(averages, self._averages.start(list(averages), list(averages.values()))) for averages in by_type.values()]

    def _apply(self, exchanges):
        if not exchanges:
            return
        own = {parameter: parameter.grad for parameter in self._parameters()}
        for parameter in own:
            parameter.grad = None
        for averages, work in exchanges:
            work.wait()
            for parameter, average in averages.items():
                parameter.grad = average
        self.optimizer.step()
        for parameter, gradient in own.items():
            parameter.grad = gradient
        for averages, _ in exchanges:
            self._spare.update(averages)
