# SPDX-License-Identifier: Apache-2.0
"""Each collective, type and operation against plain PyTorch, on any number of ranks."""
import unittest

import members
import torch
import torch.distributed as dist
from members import COMPLEX, FLOATS, INTEGERS, MOVED, NUMBERS, SIZES, UNSIGNED, rank, same, size, total, values

Op = dist.ReduceOp


def everyone(count, dtype):
    return torch.stack([values(each, count, dtype) for each in range(size())])


def folded(parts, fold):
    result = parts[0]
    for part in parts[1:]:
        result = fold(result, part)
    return result


class Reductions(unittest.TestCase):
    def test_sums(self):
        for dtype in NUMBERS + UNSIGNED + COMPLEX + (torch.float8_e4m3fn,):
            for count in SIZES:
                for is_async in (False, True):
                    with self.subTest(dtype=dtype, count=count, is_async=is_async):
                        x = values(rank(), count, dtype)
                        work = dist.all_reduce(x, async_op=is_async)
                        if is_async:
                            self.assertTrue(work.wait())
                            self.assertTrue(work.is_completed())
                        same(x, total(count, dtype))

    def test_operations(self):
        folds = {Op.PRODUCT: torch.mul, Op.MAX: torch.maximum, Op.MIN: torch.minimum}
        bits = {Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}
        for dtype in NUMBERS:
            for op, fold in {**folds, **(bits if dtype in INTEGERS else {})}.items():
                with self.subTest(dtype=dtype, op=op):
                    x = values(rank(), 1000, dtype)
                    dist.all_reduce(x, op)
                    same(x, folded(everyone(1000, dtype), fold))

    def test_average(self):
        for dtype in FLOATS + COMPLEX:
            with self.subTest(dtype=dtype):
                x = values(rank(), 1000, dtype)
                dist.all_reduce(x, Op.AVG)
                wide = torch.complex128 if dtype.is_complex else torch.float64
                torch.testing.assert_close(x.to(wide), total(1000, dtype).to(wide) / size(), rtol=1e-2, atol=1e-2)

    def test_sum_with_factors(self):
        """Each rank may have its own factor."""
        for dtype in FLOATS:
            with self.subTest(dtype=dtype):
                x = values(rank(), 1000, dtype)
                dist.all_reduce(x, dist._make_nccl_premul_sum(0.5 * (rank() + 1)))
                wanted = sum(values(each, 1000, torch.float64) * 0.5 * (each + 1) for each in range(size()))
                same(x, wanted.to(dtype))
        x = values(rank(), 10, torch.float32)
        dist.all_reduce(x, dist._make_nccl_premul_sum(torch.tensor([2.0])))
        same(x, 2 * total(10, torch.float32))

    def test_bool(self):
        either, both = torch.logical_or, torch.logical_and
        for op, fold in ((Op.SUM, either), (Op.MAX, either), (Op.BOR, either), (Op.PRODUCT, both), (Op.MIN, both),
                         (Op.BAND, both), (Op.BXOR, torch.logical_xor)):
            with self.subTest(op=op):
                x = values(rank(), 1000, torch.bool)
                dist.all_reduce(x, op)
                same(x, folded(everyone(1000, torch.bool), fold))

    def test_reduce(self):
        for root in range(size()):
            for dtype in NUMBERS + COMPLEX:
                with self.subTest(root=root, dtype=dtype):
                    x = values(rank(), 1000, dtype)
                    dist.reduce(x, root)
                    if rank() == root:
                        same(x, total(1000, dtype))

    def test_reduce_scatter(self):
        for dtype in NUMBERS + COMPLEX:
            for count in SIZES:
                with self.subTest(dtype=dtype, count=count):
                    blocks = [values(rank(), count, dtype, block) for block in range(size())]
                    wanted = total(count, dtype, rank())
                    out = torch.empty(count, dtype=dtype)
                    dist.reduce_scatter(out, blocks)
                    same(out, wanted)
                    out = torch.empty(count, dtype=dtype)
                    dist.reduce_scatter_tensor(out, torch.cat(blocks))
                    same(out, wanted)
                    out = torch.empty(count, dtype=dtype)
                    dist.reduce_scatter_tensor(out, torch.cat(blocks), async_op=True).wait()
                    same(out, wanted)

    def test_coalesced(self):
        tensors = [values(rank(), count, torch.float32) for count in SIZES]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        for tensor in tensors:
            same(tensor, total(tensor.numel(), torch.float32))
        inputs = [values(rank(), count * size(), torch.int64) for count in SIZES]
        outputs = [torch.empty(count, dtype=torch.int64) for count in SIZES]
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            for output, tensor in zip(outputs, inputs):
                dist.reduce_scatter_tensor(output, tensor)
        manager.wait()
        for output in outputs:
            whole = total(output.numel() * size(), torch.int64)
            same(output, whole.chunk(size())[rank()] if output.numel() > 0 else whole)
        gathered = [torch.empty(count * size()) for count in SIZES]
        with dist._coalescing_manager(async_ops=True) as manager:
            for output, count in zip(gathered, SIZES):
                dist.all_gather_into_tensor(output, values(rank(), count, torch.float32))
        manager.wait()
        for output, count in zip(gathered, SIZES):
            same(output, torch.cat([values(each, count, torch.float32) for each in range(size())]))

    def test_sparse(self):
        """Row r of rank r, and one row of all: once and twice in the same tensor."""
        # Not complex: PyTorch hands over a view, to which a sum of another pattern cannot be written back.
        for dtype in (torch.float32, torch.int64):
            for is_async in (False, True):
                rows = torch.tensor([[rank(), size(), size()]])
                x = torch.sparse_coo_tensor(rows, values(rank(), 12, dtype).reshape(3, 4), (size() + 2, 4))
                wanted = sum(torch.sparse_coo_tensor(torch.tensor([[each, size(), size()]]),
                                                     values(each, 12, dtype).reshape(3, 4), (size() + 2, 4)).to_dense()
                             for each in range(size()))
                work = dist.all_reduce(x, async_op=is_async)
                if is_async:
                    work.wait()
                same(x.to_dense(), wanted)
        empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (3,))
        dist.all_reduce(empty)
        self.assertEqual(empty._nnz(), 0)
        with self.assertRaisesRegex(ValueError, "all_reduce: op is not SUM"):
            dist.all_reduce(empty, Op.MAX)

    def test_future(self):
        x = values(rank(), 1000, torch.float32)
        future = dist.all_reduce(x, async_op=True).get_future()
        then = future.then(lambda done: done.value()[0] * 2)
        same(then.wait(), 2 * total(1000, torch.float32))
        parts = [torch.empty(3) for _ in range(size())]
        lists = dist.all_gather(parts, values(rank(), 3, torch.float32), async_op=True).get_future().wait()
        same(torch.stack(lists[0]), everyone(3, torch.float32))


class Movements(unittest.TestCase):
    def test_broadcast(self):
        for root in range(size()):
            for dtype in MOVED:
                for count in SIZES:
                    with self.subTest(root=root, dtype=dtype, count=count):
                        x = values(rank(), count, dtype)
                        dist.broadcast(x, root)
                        same(x, values(root, count, dtype))

    def test_all_gather(self):
        for dtype in MOVED:
            for count in SIZES:
                with self.subTest(dtype=dtype, count=count):
                    x = values(rank(), count, dtype)
                    parts = [torch.empty_like(x) for _ in range(size())]
                    dist.all_gather(parts, x)
                    whole = torch.empty(count * size(), dtype=dtype)
                    dist.all_gather_into_tensor(whole, x)
                    for each in range(size()):
                        same(parts[each], values(each, count, dtype))
                        same(whole[each * count:(each + 1) * count], values(each, count, dtype))

    def test_gather_and_scatter(self):
        for root in range(size()):
            for dtype in MOVED:
                for count in (0, 1, 1000):
                    with self.subTest(root=root, dtype=dtype, count=count):
                        x = values(rank(), count, dtype)
                        parts = [torch.empty_like(x) for _ in range(size())] if rank() == root else None
                        dist.gather(x, parts, root)
                        for each, part in enumerate(parts or []):
                            same(part, values(each, count, dtype))
                        blocks = [values(root, count, dtype, to) for to in range(size())] if rank() == root else None
                        dist.scatter(x, blocks, root)
                        same(x, values(root, count, dtype, rank()))

    def test_sizes_that_differ(self):
        """Rank r has r + 1 elements."""
        counts = [each + 1 for each in range(size())]
        x = values(rank(), rank() + 1, torch.float32)
        wanted = [values(each, each + 1, torch.float32) for each in range(size())]
        parts = [torch.empty(count) for count in counts]
        dist.all_gather(parts, x)
        for part, each in zip(parts, wanted):
            same(part, each)
        parts = [torch.empty(count) for count in counts] if rank() == 0 else None
        dist.gather(x, parts)
        for part, each in zip(parts or [], wanted):
            same(part, each)
        got = torch.empty(rank() + 1)
        dist.scatter(got, wanted if rank() == 0 else None)
        same(got, wanted[rank()])

    def test_gather_single(self):
        for root in range(size()):
            whole = torch.empty(5 * size(), dtype=torch.int16) if rank() == root else None
            dist.gather_single(values(rank(), 5, torch.int16), whole, root)
            if rank() == root:
                same(whole, torch.cat([values(each, 5, torch.int16) for each in range(size())]))

    def test_several_lists(self):
        tensors = [values(rank(), count, torch.float32) for count in SIZES]
        lists = [[torch.empty(count) for count in SIZES] for _ in range(size())]
        dist.all_gather_coalesced(lists, tensors)
        for each in range(size()):
            for got, count in zip(lists[each], SIZES):
                same(got, values(each, count, torch.float32))

    def test_all_to_all(self):
        # Rank r sends 10 * r + d elements to rank d: none from rank 0 to itself.
        sent = [10 * rank() + to for to in range(size())]
        received = [10 * source + rank() for source in range(size())]
        for dtype in MOVED:
            with self.subTest(dtype=dtype):
                blocks = [values(rank(), 100, dtype, block) for block in range(size())]
                wanted = [values(source, 100, dtype, rank()) for source in range(size())]
                out = torch.empty(100 * size(), dtype=dtype)
                dist.all_to_all_single(out, torch.cat(blocks))
                same(out, torch.cat(wanted))
                outputs = [torch.empty(100, dtype=dtype) for _ in range(size())]
                dist.all_to_all(outputs, blocks)
                for output, part in zip(outputs, wanted):
                    same(output, part)
                blocks = [values(rank(), count, dtype, to) for to, count in enumerate(sent)]
                wanted = [values(source, count, dtype, rank()) for source, count in enumerate(received)]
                out = torch.empty(sum(received), dtype=dtype)
                dist.all_to_all_single(out, torch.cat(blocks), received, sent)
                same(out, torch.cat(wanted))
                outputs = [torch.empty(count, dtype=dtype) for count in received]
                dist.all_to_all(outputs, blocks)
                for output, part in zip(outputs, wanted):
                    same(output, part)

    def test_rows(self):
        """Splits count along the first axis."""
        x = values(rank(), 6 * size(), torch.float32).reshape(2 * size(), 3)
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, [2] * size(), [2] * size())
        same(out, torch.cat([values(each, 6 * size(), torch.float32).reshape(-1, 3)[2 * rank():2 * rank() + 2]
                             for each in range(size())]))

    def test_objects(self):
        found = [None] * size()
        dist.all_gather_object(found, {"rank": rank()})
        self.assertEqual(found, [{"rank": each} for each in range(size())])
        words = ["a", rank()] if rank() == size() - 1 else [None, None]
        dist.broadcast_object_list(words, size() - 1)
        self.assertEqual(words, ["a", size() - 1])


class Arguments(unittest.TestCase):
    """Each error is raised on all ranks, before anything moves, so that the group stays usable."""

    def refused(self, kind, words, call):
        with self.assertRaisesRegex(kind, words):
            call()

    def test_refused(self):
        x, ones = torch.ones(4), torch.ones
        self.refused(ValueError, r"all_reduce: tensor has shape \[4, 2\] and strides \[4, 2\]; a contiguous tensor is wanted",
                     lambda: dist.all_reduce(ones(4, 4)[:, ::2]))
        self.refused(TypeError, "all_reduce: tensor has dtype Short, .* float32", lambda: dist.all_reduce(x.to(torch.int16)))
        self.refused(TypeError, "all_reduce: op is BAND, which does not go with dtype Float", lambda: dist.all_reduce(x, Op.BAND))
        self.refused(TypeError, "all_reduce: op is AVG, which does not go with dtype Bool", lambda: dist.all_reduce(x > 0, Op.AVG))
        self.refused(ValueError, rf"all_gather_into_tensor: output_tensor has 1 elements.*; {4 * size()} are wanted",
                     lambda: dist.all_gather_into_tensor(ones(1), x))
        self.refused(TypeError, "all_gather_into_tensor: the tensors have dtypes Float and Double",
                     lambda: dist.all_gather_into_tensor(ones(4 * size(), dtype=torch.float64), x))
        self.refused(ValueError, r"reduce_scatter: input_list\[0\] has 3 elements",
                     lambda: dist.reduce_scatter(x, [ones(3)] * size()))
        self.refused(ValueError, rf"all_gather: tensor_list has {size() + 1} tensors",
                     lambda: dist.all_gather([ones(4) for _ in range(size() + 1)], x))
        self.refused(ValueError, r"all_to_all_single: input_split_sizes add up to .*, the first axis of input",
                     lambda: dist.all_to_all_single(ones(size()), ones(size()), [1] * size(), [2] * size()))
        self.refused(ValueError, "all_to_all_single: output_split_sizes has 1 entries" if size() > 1 else "add up",
                     lambda: dist.all_to_all_single(ones(size()), ones(size()), [7], [1] * size()))
        dist.all_reduce(x)
        same(x, torch.full((4,), float(size())))

    def test_overlap(self):
        """What only the library finds has its words, and its class."""
        x = torch.ones(4 * size() + 1)
        if size() > 1:
            self.refused(dist.DistBackendError, "all_gather_into_tensor: .*overlap",
                         lambda: dist.all_gather_into_tensor(x[:-1], x[1:5]))
        dist.barrier()


if __name__ == "__main__":
    members.main()
