# SPDX-License-Identifier: Apache-2.0
"""Subsets, persistent operations, compression, double buffers, boxes, sparse rows, memory and asyncio."""
import asyncio
import gc
import unittest
import weakref

import numpy
import ranks
from ranks import same

import treering


class Communicators(unittest.TestCase):
    def test_split_and_dup(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        half = comm.split(rank % 2, -rank, name="half", timeout=30)
        members = [r for r in range(n) if r % 2 == rank % 2]
        self.assertEqual((half.size, half.rank), (len(members), members[::-1].index(rank)))
        self.assertIsInstance(half, treering.Communicator)
        self.assertEqual(half.allreduce(numpy.array([rank])).tolist(), [sum(members)])
        half.close()
        self.assertFalse(half.is_open)
        with self.assertRaisesRegex(treering.InvalidUsage, "allreduce: the communicator is closed"):
            half.allreduce(numpy.ones(1))
        self.assertIsNone(comm.split(None) if rank else comm.split(0) and None)
        with comm.dup() as same_ranks:
            self.assertEqual((same_ranks.rank, same_ranks.size), (rank, n))
            same_ranks.barrier()
        self.assertFalse(same_ranks.is_open)

    def test_shrink(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        work = comm.dup()
        self.assertEqual(work.lost(), [])
        if n > 1 and rank < n - 1:
            with work.shrink([n - 1]) as rest:
                self.assertEqual(rest.allreduce(numpy.ones(1)).tolist(), [n - 1])
        comm.barrier()
        work.abort()

    def test_grow(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        if n == 1:
            return
        single = comm.split(0 if rank == 0 else None)
        id = comm.broadcast_object(treering.unique_id() if rank == 0 else None)
        if rank == 0:
            made = single.grow(n, id)
        else:
            made = treering.init_rank(n, id, rank)
        self.assertEqual(made.allreduce(numpy.ones(1)).tolist(), [n])
        comm.barrier()
        made.close()

    def test_what_it_says(self):
        comm = ranks.comm
        self.assertIn("allreduce", comm.explain("allreduce", 1 << 20))
        self.assertIn(f"rank {comm.rank} of {comm.size}", repr(comm))
        comm.check()
        comm.finalize()
        with self.assertRaisesRegex(treering.InvalidType, "there is no setting colour; settings are timeout"):
            comm.split(0, colour=1)
        with self.assertRaisesRegex(treering.InvalidArgument, "timeout is -1"):
            comm.split(0, timeout=-1)
        with self.assertRaises(TypeError):
            treering.Communicator()


class Streams(unittest.TestCase):
    def test_await(self):
        comm, n = ranks.comm, ranks.comm.size

        async def sums():
            streams = [treering.Stream(), treering.Stream()]
            other = comm.dup()
            requests = [c.allreduce(numpy.full(k, 1.0), stream=s)
                        for k in (1, 100000) for c, s in ((comm, streams[0]), (other, streams[1]))]
            results = await asyncio.gather(*(asyncio.ensure_future(self.awaited(r)) for r in requests))
            other.close()
            return [(len(result), result[0]) for result in results]

        self.assertEqual(asyncio.run(sums()), [(1, n), (1, n), (100000, n), (100000, n)])

    @staticmethod
    async def awaited(request):
        return await request

    def test_dropped_requests_keep_their_arrays(self):
        comm, n = ranks.comm, ranks.comm.size
        stream = treering.Stream()

        class Array(numpy.ndarray):
            pass

        x = numpy.ones(100000).view(Array)
        alive = weakref.ref(x)
        out = numpy.empty(100000)
        comm.barrier()
        comm.allreduce(x, out=out, stream=stream)
        del x
        stream.synchronize()
        same(out, numpy.full(100000, float(n)))
        comm.barrier()  # a later call looks at what has ended
        gc.collect()
        self.assertIsNone(alive())

    def test_persistent(self):
        comm, n = ranks.comm, ranks.comm.size
        for stream in (None, treering.Stream()):
            x = numpy.zeros(1000, "float32")
            with treering.Persistent() as step:
                y = comm.allreduce(x, stream=stream)
            self.assertIsInstance(y, numpy.ndarray)
            for k in range(5):
                x[...] = k + comm.rank
                request = step.start()
                if stream is not None:
                    request.wait()
                same(y, numpy.full(1000, sum(k + r for r in range(n)), "float32"))
        with self.assertRaisesRegex(treering.InvalidUsage, "no calls are kept"):
            treering.Persistent().start()


class Training(unittest.TestCase):
    def test_compression(self):
        comm, n = ranks.comm, ranks.comm.size
        x = numpy.arange(200, dtype="float32") / 7
        for wire, error in (("float16", 2e-3), ("bfloat16", 1.6e-2), ("float8_e4m3fn", 0.13), ("float8_e5m2", 0.26)):
            got = comm.allreduce(x, compression=treering.Compression(wire))
            numpy.testing.assert_allclose(got, x * n, rtol=error, atol=error * float(x.max()))
        feedback = treering.Compression("bfloat16", error_feedback=True, count=200)
        total = sum(comm.allreduce(x, compression=feedback) for _ in range(64))
        # What rounding took from the inputs comes later; the results are still rounded to 8 bits.
        numpy.testing.assert_allclose(total, 64.0 * n * x, rtol=2.0 ** -8)
        with self.assertRaisesRegex(treering.InvalidType, "float32 is wanted with compression"):
            comm.allreduce(x.astype("float64"), compression=feedback)

    def test_double_buffer_that_owns(self):
        comm, n = ranks.comm, ranks.comm.size
        mean = (n - 1) / 2
        buffer = treering.DoubleBuffer(comm, "float32")
        for step in range(4):
            tensors = [numpy.full(10, comm.rank + step, "float32"), numpy.full((2, 2), comm.rank - step, "float32")]
            ready = buffer.exchange(tensors)
            self.assertEqual(ready, step > 0)
            if ready:
                numpy.testing.assert_allclose(tensors[0], mean + step - 1)
                numpy.testing.assert_allclose(tensors[1], mean - step + 1)
        self.assertTrue(buffer.flush())
        numpy.testing.assert_allclose(tensors[0], mean + 3)

    def test_double_buffer_that_refuses_a_set(self):
        comm, n = ranks.comm, ranks.comm.size
        for owned in (True, False):
            buffer = treering.DoubleBuffer(comm, "float32", owned=owned)
            first = numpy.full(1000, comm.rank, "float32")
            buffer.exchange([first])
            whole = numpy.full(1000, 7, "float32")
            with self.assertRaisesRegex(treering.InvalidUsage, "tensor 0 has 10 elements, before 1000"):
                buffer.exchange([whole[:10]])
            got = buffer.flush()
            numpy.testing.assert_allclose(first, (n - 1) / 2)
            same(whole, numpy.full(1000, 7, "float32"))
            if not owned:
                self.assertIs(got[0], first)
            # The object goes on.
            self.assertFalse(buffer.exchange([whole[:10]]))
            buffer.flush()
            numpy.testing.assert_allclose(whole, 7)

    def test_double_buffer_that_borrows(self):
        comm, n = ranks.comm, ranks.comm.size
        buffer = treering.DoubleBuffer(comm, "float64", owned=False)
        before = None
        for step in range(4):
            tensors = [numpy.full(10, float(comm.rank + step))]
            got = buffer.exchange(tensors)
            if step == 0:
                self.assertIsNone(got)
            else:
                self.assertIs(got[0], before)
                numpy.testing.assert_allclose(got[0], (n - 1) / 2 + step - 1)
            before = tensors[0]
        self.assertIs(buffer.flush()[0], before)
        numpy.testing.assert_allclose(before, (n - 1) / 2 + 3)


class Sparse(unittest.TestCase):
    def test_boxes(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        whole = numpy.arange(2 * n * 3, dtype="int32").reshape(2 * n, 3)
        held = [((2 * rank, 0), (2 * rank + 2, 3))]
        needed = [((0, 1), (2 * n, 2)), ((rank, 0), (rank + 1, 3))]
        exchange = treering.Exchange(comm, held, needed, "int32")
        stream = treering.Stream()
        for out in (None, [numpy.empty((2 * n, 1), "int32"), numpy.empty((1, 3), "int32")]):
            for s in (None, stream):
                got = exchange.start([whole[2 * rank:2 * rank + 2]], out, stream=s)
                got = got if s is None else got.wait()
                same(got[0], whole[:, 1:2])
                same(got[1], whole[rank:rank + 1])
        with self.assertRaisesRegex(treering.InvalidArgument, r"held\[0\] is int32 of shape \(1, 3\); int32 of its box's shape"):
            exchange.start([whole[:1]])
        with self.assertRaisesRegex(treering.InvalidArgument, "held has 0 arrays; 1 are wanted"):
            exchange.start([])

    def test_rows(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        indices = numpy.array([rank, 100, rank], "int64")
        values = numpy.array([[1, 2], [3, 4], [5, 6]], "float32")
        got, sums = comm.sparse_allreduce(indices, values, capacity=n + 1)
        self.assertEqual(got.tolist(), [*range(n), 100])
        same(sums, numpy.array([[6, 8]] * n + [[3 * n, 4 * n]], "float32"))
        with self.assertRaises(treering.Error) as caught:
            comm.sparse_allreduce(indices, values, capacity=n)
        self.assertIn(str(n + 1), str(caught.exception))


class Memory(unittest.TestCase):
    def test_shared_arrays(self):
        comm, n = ranks.comm, ranks.comm.size
        x = treering.empty((3, 100000), "float32")
        self.assertEqual((x.shape, x.dtype, float(x.sum())), ((3, 100000), numpy.dtype("float32"), 0.0))
        x += comm.rank
        same(comm.allreduce(x, out=x), numpy.full((3, 100000), sum(range(n)), "float32"))
        self.assertEqual(treering.empty(0).shape, (0,))

    def test_registered_arrays(self):
        comm, n = ranks.comm, ranks.comm.size
        x = numpy.ones(1 << 18, "float32")
        with comm.register(x):
            comm.allreduce(x, out=x)
        same(x, numpy.full(1 << 18, n, "float32"))


if __name__ == "__main__":
    ranks.main()
