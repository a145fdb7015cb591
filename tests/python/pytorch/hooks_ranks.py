# SPDX-License-Identifier: Apache-2.0
"""Hooks of DistributedDataParallel and the double-buffered optimizer, against a single process."""
import unittest

import members
import torch
import torch.distributed as dist
from members import rank, same, size
from torch.nn.parallel import DistributedDataParallel
from training_ranks import STEPS, batch_of, make_model, own_batches, single_process, train

from treering.torch import DoubleBuffer, hooks
from treering.torch._averages import Averages

# How far the way of the parameters may be off after the steps, as a part of its length: some units of the type, and a ReLU that
# takes the other side. Without the gradients it would be 1.
TOLERANCES = {"fp16": 2**-9, "bf16": 2**-5, "fp8-e4m3": 2**-3, "fp8-e5m2": 2**-2}


def loss_of(model, step, of_rank):
    inputs, targets = batch_of(step, of_rank)
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def late_single_process(steps, applied):
    """One process that uses the gradients of all ranks a step late; `applied`: how many of the gradients it uses."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = []
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, step, each) for each in range(size())) / size()).backward()
        before.append([parameter.grad.clone() for parameter in model.parameters()])
        if step > 0:
            use(model, optimizer, before[step - 1])
    for gradients in before[steps - 1:applied]:
        use(model, optimizer, gradients)
    return list(model.parameters())


def use(model, optimizer, gradients):
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    optimizer.step()


def data_parallel():
    # Buckets of a few KB, which DDP divides anew after the first step.
    return DistributedDataParallel(make_model(), bucket_cap_mb=0.005)


class Case(unittest.TestCase):
    def compare(self, parameters, wanted, tolerance=1e-4):
        for got, due in zip(parameters, wanted):
            torch.testing.assert_close(got, due, rtol=tolerance, atol=tolerance)

    def compare_ways(self, parameters, wanted, tolerance):
        """From where the model began."""
        begin = torch.nn.utils.parameters_to_vector(make_model().parameters())
        got, due = (torch.nn.utils.parameters_to_vector(each) - begin for each in (parameters, wanted))
        self.assertGreater(due.norm().item(), 0.01)
        self.assertLess(((got - due).norm() / due.norm()).item(), tolerance)

    def same_on_all(self, parameters):
        for parameter in parameters:
            other = parameter.detach().clone()
            dist.broadcast(other, 0)
            same(other, parameter.detach())


class Compression(Case):
    def test_training(self):
        for wire, tolerance in TOLERANCES.items():
            for feedback in (False, True):
                with self.subTest(wire=wire, feedback=feedback):
                    model = data_parallel()
                    model.register_comm_hook(hooks.Compression(wire, feedback), hooks.compress)
                    train(model, own_batches())
                    self.compare_ways(model.parameters(), single_process(), tolerance)
                    self.same_on_all(model.parameters())

    def test_it_rounds(self):
        value = 1 + 2**-9  # between two numbers of bf16
        tensor = torch.full((1000,), value)
        Averages(None, "bf16", False).start([torch.zeros(1000)], [tensor]).wait()
        same(tensor, torch.full((1000,), value if size() == 1 else 1.0))

    def test_feedback_follows_the_parameter(self):
        """Four gradients of 1 + 2^-9 are 4 + 2^-7: what is rounded off comes later, in whatever bucket."""
        averages = Averages(None, "bf16", True)
        parameters = [torch.zeros(1000), torch.zeros(30)]
        totals = [torch.zeros(1000), torch.zeros(30)]
        for buckets in ([[0, 1]], [[1], [0]], [[1, 0]], [[0], [1]]):
            for bucket in buckets:
                gradients = [torch.full_like(parameters[i], 1 + 2**-9) for i in bucket]
                averages.start([parameters[i] for i in bucket], gradients).wait()
                for i, gradient in zip(bucket, gradients):
                    totals[i] += gradient
        for total in totals:
            same(total, torch.full_like(total, 4 + 2**-7))

    def test_other_types_travel_as_they_are(self):
        model = DistributedDataParallel(make_model().double())
        model.register_comm_hook(hooks.Compression("fp8-e5m2"), hooks.compress)
        train(model, [(inputs.double(), targets) for inputs, targets in own_batches()])
        self.compare(model.parameters(), [parameter.double() for parameter in single_process()])

    def test_wrong_arguments(self):
        with self.assertRaisesRegex(ValueError, 'wire is "fp17"; "fp16", "bf16"'):
            hooks.Compression("fp17")
        with self.assertRaisesRegex(ValueError, "error_feedback is given without a wire type"):
            hooks.Late(error_feedback=True)
        others = Averages(dist.new_group(backend="gloo"), "fp16", False)
        with self.assertRaisesRegex(ValueError, "is gloo; treering is wanted"):
            others.start([torch.zeros(1)], [torch.zeros(1)])


class Late(Case):
    def test_hook_without_compression(self):
        model, state = data_parallel(), hooks.Late()
        model.register_comm_hook(state, hooks.late)
        train(model, own_batches())
        state.finish()
        self.compare(model.parameters(), late_single_process(STEPS, STEPS - 1))
        self.same_on_all(model.parameters())

    def test_hook_with_compression(self):
        model, state = data_parallel(), hooks.Late("fp16", error_feedback=True)
        model.register_comm_hook(state, hooks.late)
        train(model, own_batches())
        state.finish()
        self.compare_ways(model.parameters(), late_single_process(STEPS, STEPS - 1), TOLERANCES["fp16"])

    def test_first_step_leaves_the_parameters_alone(self):
        model = data_parallel()
        model.register_comm_hook(hooks.Late(), hooks.late)
        train(model, own_batches()[:1])
        for got, due in zip(model.parameters(), make_model().parameters()):
            same(got.detach(), due.detach())

    def test_optimizer(self):
        for wire, feedback in ((None, False), ("bf16", False), ("bf16", True)):
            with self.subTest(wire=wire, feedback=feedback):
                model = make_model()
                optimizer = DoubleBuffer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), wire, feedback)
                for step in range(STEPS):
                    optimizer.zero_grad()
                    loss_of(model, step, rank()).backward()
                    optimizer.step()
                    if step == 0:
                        for got, due in zip(model.parameters(), make_model().parameters()):
                            same(got.detach(), due.detach())
                optimizer.finish()
                self.compare_ways(model.parameters(), late_single_process(STEPS, STEPS), TOLERANCES.get(wire, 1e-4))
                self.same_on_all(model.parameters())


if __name__ == "__main__":
    members.main()
