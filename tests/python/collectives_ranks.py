# SPDX-License-Identifier: Apache-2.0
"""Each collective, type and operation against NumPy, on any number of ranks."""
import unittest

import numpy
import ranks
from ranks import dtypes, input_of, kind_of, same

import treering

OF_KIND = {
    "integer": ("sum", "prod", "max", "min", "avg", "bit_and", "bit_or", "bit_xor", "logical_and", "logical_or", "logical_xor"),
    "float": ("sum", "prod", "max", "min", "avg"),
    "complex": ("sum", "prod", "avg"),
    "bool": ("bit_and", "bit_or", "bit_xor", "logical_and", "logical_or", "logical_xor"),
}
FOLD = {
    "sum": numpy.add, "prod": numpy.multiply, "max": numpy.maximum, "min": numpy.minimum, "avg": numpy.add,
    "bit_and": numpy.bitwise_and, "bit_or": numpy.bitwise_or, "bit_xor": numpy.bitwise_xor,
    "logical_and": numpy.logical_and, "logical_or": numpy.logical_or, "logical_xor": numpy.logical_xor,
}


def reduced(arrays, op, dtype):
    """What NumPy makes of it; floats are added in a type that holds the sum exactly."""
    wide = [array.astype("float64") if array.dtype.kind in "fV" else array for array in arrays]
    total = wide[0].astype(bool) if op.startswith("logical") else wide[0]
    with numpy.errstate(over="ignore"):
        for array in wide[1:]:
            total = FOLD[op](total, array)
    if op == "avg":
        if numpy.issubdtype(dtype, numpy.integer):
            total = numpy.trunc(total.astype("float64") / len(arrays))
        elif dtype.itemsize < 4 or dtype == numpy.float32:
            total = total.astype("float32") / numpy.float32(len(arrays))
        elif dtype.kind == "c":
            part = dtype.type(0).real.dtype.type
            total = total.view(part) / part(len(arrays))
            return total.view(dtype)
        else:
            total = total / dtype.type(len(arrays))
    return numpy.asarray(total).astype(dtype)


class Reductions(unittest.TestCase):
    def each(self):
        """(name, dtype, op) of all that go together."""
        return [(name, dtype, op) for name, dtype in dtypes() for op in OF_KIND[kind_of(name)]]

    def test_every_type_and_operation(self):
        n, rank = ranks.comm.size, ranks.comm.rank
        counts = [(r * 2 + 1) % 4 for r in range(n)]
        for name, dtype, op in self.each():
            with self.subTest(dtype=name, op=op):
                inputs = [input_of(r, (2 * n, 3), name, dtype, op) for r in range(n)]
                wanted = reduced(inputs, op, dtype)
                same(ranks.comm.allreduce(inputs[rank], op), wanted)
                for root in (0, n - 1):
                    got = ranks.comm.reduce(inputs[rank], op, root)
                    if rank == root:
                        same(got, wanted)
                    else:
                        self.assertIsNone(got)
                same(ranks.comm.reduce_scatter(inputs[rank], op), wanted[2 * rank:2 * rank + 2])
                inputs = [input_of(r, (sum(counts), 3), name, dtype, op) for r in range(n)]
                begin = sum(counts[:rank])
                same(ranks.comm.reduce_scatterv(inputs[rank], counts, op),
                     reduced(inputs, op, dtype)[begin:begin + counts[rank]])

    def test_others_are_refused(self):
        for name, dtype in dtypes():
            for op in sorted(set(treering.operations()) - set(OF_KIND[kind_of(name)])):
                with self.subTest(dtype=name, op=op), self.assertRaises(treering.InvalidArgument):
                    ranks.comm.allreduce(input_of(0, (3,), name, dtype), op)

    def test_out_in_place_and_stream(self):
        comm, n = ranks.comm, ranks.comm.size
        stream = treering.Stream()
        for shape in ((), (1,), (5,), (0,), (3, 0), (2, 3, 4), (10007,), (300, 1000)):
            inputs = [input_of(r, shape, "float32", numpy.dtype("float32")) for r in range(n)]
            wanted = reduced(inputs, "sum", numpy.dtype("float32"))
            out = numpy.empty(shape, "float32")
            self.assertIs(comm.allreduce(inputs[comm.rank], out=out), out)
            same(out, wanted)
            x = inputs[comm.rank].copy()
            self.assertIs(comm.allreduce(x, out=x), x)
            same(x, wanted)
            request = comm.allreduce(inputs[comm.rank], stream=stream)
            same(request.wait(), wanted)
            same(request.wait(), wanted)
            self.assertTrue(request.test())
            flat = numpy.empty(wanted.size, "float32")
            comm.allreduce(inputs[comm.rank], out=flat)
            same(flat.reshape(shape), wanted)
        stream.close()

    def test_operations_of_the_program(self):
        comm, n = ranks.comm, ranks.comm.size
        x = numpy.arange(100, dtype="float64") + comm.rank
        total = sum(numpy.arange(100, dtype="float64") + r for r in range(n))
        same(comm.allreduce(x, comm.scaled_sum(0.5, "float64")), total / 2)
        larger = comm.operation(lambda a, b: numpy.maximum(a, b))
        same(comm.allreduce(x, larger), numpy.arange(100, dtype="float64") + n - 1)
        stream = treering.Stream()
        same(comm.allreduce(x, larger, stream=stream).wait(), numpy.arange(100, dtype="float64") + n - 1)
        # a is of lower ranks than b.
        last = comm.operation(lambda a, b: b, commutative=False)
        same(comm.allreduce(x, last), numpy.arange(100, dtype="float64") + n - 1)

    def test_what_a_function_raises(self):
        if ranks.comm.size == 1:
            return  # there is nothing to combine

        def fails(a, b):
            raise LookupError("as the test wants it")

        # Not all ranks combine something; each that does raises.
        comm = ranks.comm.dup()
        try:
            comm.reduce(numpy.ones(4), comm.operation(fails), root=0)
        except LookupError as failure:
            self.assertIn("as the test wants it", str(failure))
        comm.barrier()
        comm.close()


class Movements(unittest.TestCase):
    def test_every_type(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        for name, dtype in dtypes():
            with self.subTest(dtype=name):
                inputs = [input_of(r, (2 * n, 3), name, dtype) for r in range(n)]
                x = inputs[rank]
                everything = numpy.concatenate(inputs)
                same(comm.allgather(x), everything)
                for root in range(n):
                    same(comm.broadcast(x, root), inputs[root])
                    got = comm.gather(x, root)
                    same(got, everything) if rank == root else self.assertIsNone(got)
                    same(comm.scatter(x, root), inputs[root][2 * rank:2 * rank + 2])
                same(comm.alltoall(x), numpy.concatenate([other[2 * rank:2 * rank + 2] for other in inputs]))
                same(comm.sendrecv(x, (rank + 1) % n, (rank - 1) % n), inputs[(rank - 1) % n])

    def test_out(self):
        comm, n, rank = ranks.comm, ranks.comm.size, ranks.comm.rank
        inputs = [numpy.arange(2 * n, dtype="int32") * (r + 1) for r in range(n)]
        everything = numpy.concatenate(inputs)
        out = numpy.empty((n, 2 * n), "int32")
        self.assertIs(comm.allgather(inputs[rank], out=out), out)
        same(out.reshape(-1), everything)
        out[...] = 0
        out[rank] = inputs[rank]
        comm.allgather(out[rank], out=out)  # in place
        same(out.reshape(-1), everything)
        block = numpy.empty(2, "int32")
        same(comm.scatter(inputs[0] if rank == 0 else None, out=block), inputs[0][2 * rank:2 * rank + 2])
        x = inputs[rank].copy()
        self.assertIs(comm.broadcast(x, n - 1, out=x), x)
        same(x, inputs[n - 1])
        same(comm.broadcast(None if rank else inputs[0], out=x), inputs[0])
        stream = treering.Stream()
        comm.barrier(stream=stream)
        request = comm.alltoall(inputs[rank], stream=stream)
        same(request.wait(30), numpy.concatenate([other[2 * rank:2 * rank + 2] for other in inputs]))
        stream.synchronize()
        self.assertTrue(stream.query())


if __name__ == "__main__":
    ranks.main()
