# SPDX-License-Identifier: Apache-2.0
"""The v-variants, sends and receives, objects and groups against NumPy, on any number of ranks."""
import unittest

import numpy
import ranks
from ranks import dtypes, input_of, same

import treering


def rows(n, shift=0):
    """Rows of each rank; some have none."""
    return [(r + shift) % 3 for r in range(n)]


class VariableCounts(unittest.TestCase):
    def test_every_type(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        counts = rows(n)
        for name, dtype in dtypes():
            with self.subTest(dtype=name):
                inputs = [input_of(r, (counts[r], 2), name, dtype) for r in range(n)]
                everything = numpy.concatenate(inputs)
                same(comm.allgatherv(inputs[rank], counts), everything)
                for root in (0, n - 1):
                    got = comm.gatherv(inputs[rank], counts if rank == root else None, root)
                    same(got, everything) if rank == root else self.assertIsNone(got)
                    if rank == root:
                        same(comm.scatterv(everything, counts, root), inputs[root])
                    else:
                        out = numpy.empty((counts[rank], 2), dtype)
                        self.assertIs(comm.scatterv(None, None, root, out=out), out)
                        same(out, inputs[rank])

    def test_alltoallv(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        counts = [[(s * 2 + d) % 4 for d in range(n)] for s in range(n)]  # of s for d
        pieces = [[numpy.full((counts[s][d], 3), s * 10 + d, "int64") for d in range(n)] for s in range(n)]
        recv = [counts[s][rank] for s in range(n)]
        x = numpy.concatenate(pieces[rank])
        wanted = numpy.concatenate([pieces[s][rank] for s in range(n)])
        same(comm.alltoallv(x, counts[rank], recv), wanted)
        stream = treering.Stream()
        same(comm.alltoallv(x, counts[rank], recv, stream=stream).wait(), wanted)
        # With a row between the blocks, on both sides.
        spread = numpy.full((len(x) + n, 3), -1, "int64")
        begins = [sum(counts[rank][:d]) + d for d in range(n)]
        for d in range(n):
            spread[begins[d]:begins[d] + counts[rank][d]] = pieces[rank][d]
        out = numpy.full((sum(recv) + n, 3), -7, "int64")
        places = [sum(recv[:s]) + s for s in range(n)]
        comm.alltoallv(spread, counts[rank], recv, send_displacements=begins, recv_displacements=places, out=out)
        for s in range(n):
            same(out[places[s]:places[s] + recv[s]], pieces[s][rank])
        self.assertEqual((out == -7).sum(), 3 * n)

    def test_displacements(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        counts = rows(n, 1)
        backwards = [sum(counts[r + 1:]) for r in range(n)]
        inputs = [numpy.full(counts[r], r, "float32") for r in range(n)]
        wanted = numpy.concatenate(inputs[::-1])
        same(comm.allgatherv(inputs[rank], counts, displacements=backwards), wanted)
        got = comm.gatherv(inputs[rank], counts, displacements=backwards)
        if rank == 0:
            same(got, wanted)
            same(comm.scatterv(wanted, counts, displacements=backwards), inputs[0])
        else:
            same(comm.scatterv(out=numpy.empty(counts[rank], "float32")), inputs[rank])

    def test_wrong_counts(self):
        comm, n = ranks.comm, ranks.comm.size
        x = numpy.ones((2, 2))
        for counts, words in (([2] * (n + 1), f"counts has {n + 1} entries; {n} numbers of rows are wanted"),
                              ([3] * n, "x is float64 of shape (2, 2); 3 rows are wanted"),
                              ([-1] * n, "counts has -1"), (7, "counts is of type int")):
            with self.subTest(counts=counts), self.assertRaises(treering.InvalidArgument) as caught:
                comm.allgatherv(x, counts)
            self.assertIn(words, str(caught.exception))


class PointToPoint(unittest.TestCase):
    def test_ring(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        x = numpy.arange(1000, dtype="float64") * rank
        out = numpy.empty_like(x)
        with treering.Group():
            comm.send(x, (rank + 1) % n)
            self.assertIs(comm.recv(out, (rank - 1) % n), out)
        same(out, numpy.arange(1000, dtype="float64") * ((rank - 1) % n))
        stream = treering.Stream()
        with treering.Group():
            sent = comm.send(x, (rank + 1) % n, stream=stream)
            received = comm.recv(out, (rank - 1) % n, stream=stream)
            with self.assertRaisesRegex(treering.InvalidUsage, "in a group that has not ended"):
                received.test()
        self.assertIs(received.wait(), out)
        sent.wait()
        # Other numbers of elements in the two directions.
        wanted = numpy.full((rank - 1) % n + 1, 3.0)
        got = comm.sendrecv(numpy.full(rank + 1, 3.0), (rank + 1) % n, (rank - 1) % n, out=numpy.empty((rank - 1) % n + 1))
        same(got, wanted)

    def test_group_of_allreduces(self):
        comm, n = ranks.comm, ranks.comm.size
        arrays = [numpy.full(k + 1, comm.rank + k, "float32") for k in range(10)]
        with treering.Group():
            results = [comm.allreduce(array) for array in arrays]
        for k, result in enumerate(results):
            same(result, numpy.full(k + 1, sum(r + k for r in range(n)), "float32"))

    def test_group_that_raises_starts_nothing(self):
        comm = ranks.comm
        x = numpy.full(4, 5.0)
        with self.assertRaisesRegex(KeyError, "as the test wants it"):
            with treering.Group():
                comm.allreduce(x, out=x)
                raise KeyError("as the test wants it")
        same(x, numpy.full(4, 5.0))
        comm.barrier()

    def test_objects(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        own = {"rank": rank, "text": "x" * rank * 1000}
        every = [{"rank": r, "text": "x" * r * 1000} for r in range(n)]
        self.assertEqual(comm.broadcast_object(own if rank == n - 1 else None, n - 1), every[n - 1])
        self.assertEqual(comm.allgather_objects(own), every)
        self.assertEqual(comm.gather_objects(own, n - 1), every if rank == n - 1 else None)
        self.assertEqual(comm.scatter_objects(every if rank == 0 else None), own)
        self.assertEqual(comm.alltoall_objects([(rank, d) for d in range(n)]), [(s, rank) for s in range(n)])
        with self.assertRaisesRegex(treering.InvalidArgument, f"alltoall_objects: values has {n + 1} entries; {n} are wanted"):
            comm.alltoall_objects([0] * (n + 1))
        if n > 1 and rank == 0:
            comm.send_object(own, 1)
        elif rank == 1:
            self.assertEqual(comm.recv_object(0), every[0])


if __name__ == "__main__":
    ranks.main()
