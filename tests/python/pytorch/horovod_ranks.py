# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface: values of its calls, and training against a single process."""
import json
import os
import tempfile
import unittest
import unittest.mock

import members
import torch
import torch.distributed as dist
from members import FLOATS, INTEGERS, rank, same, size, total, values
from training_ranks import make_model, own_batches, single_process, train

import treering.horovod as hvd


def setUpModule():
    hvd.init()


class Calls(unittest.TestCase):
    def test_job(self):
        self.assertTrue(hvd.is_initialized())
        self.assertEqual((hvd.rank(), hvd.size()), (rank(), size()))
        self.assertEqual((hvd.local_rank(), hvd.local_size()), (rank(), size()))
        self.assertEqual((hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()), (0, 1, True))

    def test_allreduce(self):
        for dtype in INTEGERS + FLOATS:
            tensor = values(rank(), 1000, dtype)
            same(hvd.allreduce(tensor, op=hvd.Sum), total(1000, dtype))
            same(tensor, values(rank(), 1000, dtype))
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="x")
            self.assertIs(hvd.synchronize(handle), tensor)
            self.assertTrue(hvd.poll(handle))
            same(tensor, total(1000, dtype))
        tensor = torch.full((5,), float(rank()))
        same(hvd.allreduce(tensor), torch.full((5,), (size() - 1) / 2))
        same(hvd.allreduce(tensor, average=False), torch.full((5,), size() * (size() - 1) / 2))
        same(hvd.allreduce(tensor, op=hvd.Max), torch.full((5,), size() - 1.0))
        same(hvd.allreduce(tensor, op=hvd.Min), torch.zeros(5))
        same(hvd.allreduce(tensor + 1, op=hvd.Product), torch.full((5,), float(torch.arange(1, size() + 1).prod())))
        same(hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), torch.full((5,), size() * (size() - 1) / 2))
        same(hvd.allreduce(tensor, compression=hvd.Compression.fp16), torch.full((5,), (size() - 1) / 2))
        same(hvd.allreduce(tensor.reshape(5, 1).expand(5, 3)), torch.full((5, 3), (size() - 1) / 2))
        with self.assertRaisesRegex(ValueError, "op is 'sum'; Average, Sum"):
            hvd.allreduce(tensor, op="sum")

    def test_grouped(self):
        tensors = [values(rank(), count, torch.float32) for count in (1, 1000, 70_000)]
        for got, tensor in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), tensors):
            same(got, total(tensor.numel(), torch.float32))
        hvd.grouped_allreduce_(tensors, op=hvd.Sum)
        for tensor in tensors:
            same(tensor, total(tensor.numel(), torch.float32))

    def test_a_group_can_be_asked_and_has_any_types(self):
        tensors = [torch.ones(3), torch.ones(2, dtype=torch.int64), torch.ones(4)]
        handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum)
        hvd.poll(handle)
        for got in hvd.synchronize(handle):
            same(got, torch.full_like(got, size()))
        with self.assertRaises(TypeError):
            hvd.grouped_allreduce([torch.ones(2), torch.ones(2, dtype=torch.complex64)], op=hvd.Max)
        same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(size())))

    def test_no_gradient_flows(self):
        leaf = torch.ones(3, requires_grad=True)
        for result in (hvd.allreduce(leaf), hvd.synchronize(hvd.allreduce_async(leaf)), hvd.grouped_allreduce([leaf * 2, leaf])[0]):
            self.assertFalse(result.requires_grad)

    def test_fp16_rounds(self):
        same(hvd.allreduce(torch.full((3,), 1 + 2**-12), compression=hvd.Compression.fp16), torch.ones(3))

    def test_moved(self):
        # Rank r has r + 1 rows.
        own = values(rank(), 3 * (rank() + 1), torch.float32).reshape(-1, 3)
        due = torch.cat([values(each, 3 * (each + 1), torch.float32).reshape(-1, 3) for each in range(size())])
        same(hvd.allgather(own), due)
        root = size() - 1
        same(hvd.broadcast(own[:1], root), values(root, 3, torch.float32).reshape(1, 3))
        block = own[:1].clone()
        self.assertIs(hvd.broadcast_(block, root), block)
        same(block, values(root, 3, torch.float32).reshape(1, 3))

    def test_alltoall(self):
        sent = torch.arange(size() * 2, dtype=torch.float32) + 100 * rank()
        due = torch.cat([torch.tensor([2.0 * rank(), 2.0 * rank() + 1]) + 100 * each for each in range(size())])
        same(hvd.alltoall(sent), due)
        splits = [each + 1 for each in range(size())]  # so many to each
        got, came = hvd.alltoall(torch.full((sum(splits),), float(rank())), torch.tensor(splits))
        same(got, torch.arange(size(), dtype=torch.float32).repeat_interleave(rank() + 1))
        self.assertEqual(came.tolist(), [rank() + 1] * size())
        with self.assertRaisesRegex(ValueError, r"splits are \[1"):
            hvd.alltoall(torch.zeros(size() + 5), [1] * size())

    def test_reducescatter(self):
        for rows in (2 * size(), 2 * size() + 1):
            got = hvd.reducescatter(torch.arange(rows, dtype=torch.float32), op=hvd.Sum)
            sizes = [rows // size() + (each < rows % size()) for each in range(size())]
            same(got, (size() * torch.arange(rows, dtype=torch.float32)).split(sizes)[rank()])

    def test_objects(self):
        self.assertEqual(hvd.broadcast_object({"rank": rank()}, root_rank=size() - 1), {"rank": size() - 1})
        self.assertEqual(hvd.allgather_object(rank() * "x"), [each * "x" for each in range(size())])
        hvd.barrier()

    def test_timeline(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "timeline.json")
            hvd.start_timeline(path)
            hvd.allreduce(torch.ones(4), name="first")
            hvd.stop_timeline()
            with open(path if rank() == 0 else f"{path}.{rank()}", encoding="utf-8") as file:
                begin, end = json.load(file)["traceEvents"]
        self.assertEqual((begin["name"], begin["cat"], begin["args"]["bytes"], begin["pid"]), ("first", "allreduce", 16, rank()))
        self.assertEqual((begin["ph"], end["ph"], end["id"], end["name"]), ("b", "e", begin["id"], "first"))
        self.assertGreater(end["ts"], begin["ts"])


class Training(unittest.TestCase):
    def compare(self, model, tolerance=1e-4):
        for got, due in zip(model.parameters(), single_process()):
            torch.testing.assert_close(got, due, rtol=tolerance, atol=tolerance / 10)
            other = got.detach().clone()
            dist.broadcast(other, 0)
            same(other, got.detach())

    def run_steps(self, model, optimizer):
        for inputs, targets in own_batches():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return model

    def optimizer(self, model, **settings):
        return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), **settings)

    def test_optimizer(self):
        # In one piece, in some, and each parameter alone.
        for settings in ({}, {"num_groups": 2}, {"groups": 3}, {"num_groups": 100}, {"gradient_predivide_factor": 2.0}):
            with self.subTest(settings=settings):
                model = make_model()
                self.compare(self.run_steps(model, self.optimizer(model, **settings)))
        model = make_model()
        self.compare(self.run_steps(model, self.optimizer(model, groups=[list(model[2].parameters()), list(model[0].parameters())])))

    def test_fusion(self):
        for threshold in ("0", "5000"):
            with self.subTest(threshold=threshold), unittest.mock.patch.dict(os.environ, HOROVOD_FUSION_THRESHOLD=threshold):
                model = make_model()
                self.compare(self.run_steps(model, self.optimizer(model)))
        with unittest.mock.patch.dict(os.environ, HOROVOD_FUSION_THRESHOLD="4 MB"), \
                self.assertRaisesRegex(ValueError, "HOROVOD_FUSION_THRESHOLD is '4 MB'"):
            self.optimizer(make_model())

    def test_compression(self):
        model = make_model()
        self.compare(self.run_steps(model, self.optimizer(model, compression=hvd.Compression.fp16)), 0.02)

    def test_it_is_an_optimizer(self):
        model = make_model()
        optimizer = self.optimizer(model)
        self.assertIsInstance(optimizer, torch.optim.SGD)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0)
        self.run_steps(model, optimizer)
        scheduler.step()
        self.compare(model)

    def test_a_scheduler_that_was_made_before(self):
        model = make_model()
        own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.optim.lr_scheduler.StepLR(own, 1, gamma=1.0)
        self.compare(self.run_steps(model, hvd.DistributedOptimizer(own)))

    def test_several_backward_passes(self):
        model = make_model()
        optimizer = self.optimizer(model, backward_passes_per_step=2)
        for inputs, targets in own_batches():
            optimizer.zero_grad()
            for half_inputs, half_targets in zip(inputs.chunk(2), targets.chunk(2)):
                (torch.nn.functional.cross_entropy(model(half_inputs), half_targets) / 2).backward()
            optimizer.step()
        self.compare(model)

    def test_clipping_between_synchronize_and_step(self):
        model = make_model()
        optimizer = self.optimizer(model)
        for inputs, targets in own_batches():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            with optimizer.skip_synchronize():
                optimizer.step()
        self.compare(model)

    def test_a_parameter_without_gradient(self):
        """Only rank 0 uses one of them: the others have zeros for it."""
        weight, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], lr=1.0))
        (weight.sum() + other.sum() if rank() == 0 else weight.sum()).backward()
        same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(size())))  # of rank 0 after, of others before
        optimizer.step()
        same(weight.detach(), torch.zeros(2))
        torch.testing.assert_close(other.detach(), torch.full((2,), 1 - 1 / size()))

    def test_misuse(self):
        model = make_model()
        with self.assertRaisesRegex(ValueError, "several parameters of the names a"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), [("a", None), ("a", None)])
        with self.assertRaisesRegex(ValueError, "gradient_predivide_factor"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum, gradient_predivide_factor=2.0)
        optimizer = self.optimizer(model)
        optimizer.synchronize()
        with self.assertWarnsRegex(UserWarning, "skip_synchronize"):
            optimizer.step()
        if size() > 1:
            with self.assertRaisesRegex(ValueError, "closure"):
                optimizer.step(lambda: None)
            model(own_batches()[0][0]).sum().backward()
            with self.assertRaisesRegex(AssertionError, "zero_grad"):
                optimizer.zero_grad()
            optimizer.step()

    def test_state(self):
        torch.manual_seed(100 + rank())
        model = torch.nn.Linear(4, 4)
        own = torch.optim.Adam(model.parameters(), lr=0.1 / (rank() + 1))
        scheduler = torch.optim.lr_scheduler.StepLR(own, 1, gamma=0.5)
        optimizer, calls = hvd.DistributedOptimizer(own), []
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        state = optimizer.state_dict()
        self.assertEqual(state["param_groups"][0]["lr"], 0.1)
        for tensors in [*state["state"].values(), model.state_dict()]:
            for tensor in tensors.values():
                other = tensor.detach().clone()
                dist.broadcast(other, 0)
                same(other, tensor.detach())
        self.assertEqual(float(state["state"][0]["step"]), 1.0)
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        self.assertEqual(len(calls), 2)  # once for each step
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.05)


if __name__ == "__main__":
    members.main()
