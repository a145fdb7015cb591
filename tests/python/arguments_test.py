# SPDX-License-Identifier: Apache-2.0
"""A wrong argument: which one it was, what came, and what is wanted."""
import unittest

import numpy

import treering

X = numpy.ones((2, 3))
TYPES = ", ".join(treering.data_types())
ARRAY = "an array is wanted: buffer protocol, DLPack or __cuda_array_interface__"
# The method, its arguments on a communicator of 1 rank, the class, and the words.
WRONG = [
    ("allreduce", ([1, 2],), {}, TypeError, f"allreduce: x is of type list; {ARRAY}"),
    ("allreduce", (3.0,), {}, TypeError, f"allreduce: x is of type float; {ARRAY}"),
    ("allreduce", (None,), {}, TypeError, f"allreduce: x is None; {ARRAY}"),
    ("allreduce", (X.astype("int16"),), {}, TypeError, f"allreduce: x has dtype int16; one of {TYPES} is wanted"),
    ("allreduce", (X.astype("datetime64[s]"),), {}, TypeError, f"allreduce: x has dtype datetime64[s]; one of {TYPES}"),
    ("allreduce", (X.astype(">f8"),), {}, TypeError, f"allreduce: x has dtype >f8; one of {TYPES} is wanted"),
    ("allreduce", (numpy.array(["a"]),), {}, TypeError, f"allreduce: x has dtype <U1; one of {TYPES} is wanted"),
    ("allreduce", (X[:, ::2],), {}, ValueError,
     "allreduce: x has strides (24, 16) (bytes); a C-contiguous array is wanted, as numpy.ascontiguousarray() gives"),
    ("allreduce", (numpy.asfortranarray(X),), {}, ValueError, "allreduce: x has strides (8, 16) (bytes)"),
    ("allreduce", (X, "summ"), {}, ValueError, f"allreduce: op is 'summ'; one of {', '.join(treering.operations())}, or an Op"),
    ("allreduce", (X, 1), {}, TypeError, "allreduce: op is of type int; one of sum, "),
    ("allreduce", (X,), {"out": numpy.ones(5)}, ValueError,
     "allreduce: out is float64 of shape (5,), 5 elements; 6 are wanted, as many as x has"),
    ("allreduce", (X,), {"out": X.astype("float32")}, TypeError,
     "allreduce: out has dtype float32; float64 is wanted, as x has it"),
    ("allreduce", (X,), {"out": bytes(48)}, ValueError,
     "allreduce: out is read-only; an array that can be written is wanted"),
    ("allreduce", (X,), {"stream": 0}, TypeError, "allreduce: stream is of type int; a treering.Stream or None is wanted"),
    ("allreduce", (X,), {"compression": "bfloat16"}, TypeError,
     "allreduce: compression is of type str; a treering.Compression or None is wanted"),
    ("allreduce", (X.astype(bool), "sum"), {}, ValueError, "bool"),
    ("reduce", (X,), {"root": 1}, ValueError, "reduce: root is 1; a rank from 0 to 0 is wanted"),
    ("broadcast", (X, -1), {}, ValueError, "broadcast: root is -1; a rank from 0 to 0 is wanted"),
    ("broadcast", (None,), {}, TypeError, "broadcast: x is None; the root's array is wanted"),
    ("scatter", (numpy.float64(1),), {}, ValueError, "scatter: x is float64 of shape (); a first axis is wanted"),
    ("send", (X, 3), {}, ValueError, "send: dest is 3; a rank from 0 to 0 is wanted"),
    ("recv", (X, 3), {}, ValueError, "recv: source is 3; a rank from 0 to 0 is wanted"),
    ("allgatherv", (X, [3]), {}, ValueError, "allgatherv: x is float64 of shape (2, 3); 3 rows are wanted, counts[0]"),
    ("reduce_scatterv", (X, [3]), {}, ValueError, "3 rows are wanted, the sum of counts"),
    ("alltoallv", (X, [1], [2]), {}, ValueError, "1 rows are wanted, the sum of send_counts"),
    ("allgatherv", (X, [2]), {"displacements": [1], "out": X.copy()}, ValueError, "3 rows are wanted, which displacements"),
    ("sparse_allreduce", (numpy.ones(2), X), {"capacity": 2}, TypeError, "indices has dtype float64; int64 is wanted"),
    ("sparse_allreduce", (numpy.ones(3, "int64"), X), {"capacity": 2}, ValueError,
     "values is float64 of shape (2, 3); as many rows are wanted as indices has, 3"),
    ("scaled_sum", (2, "int16"), {}, TypeError, f"scaled_sum: dtype is 'int16'; one of {TYPES} is wanted"),
    ("explain", ("allreducee", 8), {}, ValueError, "explain: collective is 'allreducee'; allreduce, reduce"),
    ("register", (bytes(8),), {}, ValueError, "register: array is read-only"),
    ("split", (0,), {"timeout": "soon"}, TypeError, "split: timeout is of type str; seconds are wanted"),
    ("split", (0,), {"channels": "two"}, ValueError, "invalid literal for int()"),
    ("split", (0,), {"algorithm": 3}, TypeError, "split: algorithm is of type int; a text is wanted"),
]


class OfAnotherDevice:
    """DLPack from a device that the library does not know."""

    def __dlpack_device__(self):
        return (8, 0)

    def __dlpack__(self, **_):
        raise AssertionError("it is not asked for memory")


class Arguments(unittest.TestCase):
    def test_wrong_ones(self):
        def each(comm):
            for name, arguments, named, kind, words in WRONG:
                with self.subTest(name=name, words=words):
                    with self.assertRaises(kind) as caught:
                        getattr(comm, name)(*arguments, **named)
                    self.assertIn(words, str(caught.exception))
            with self.assertRaisesRegex(ValueError, r"x is on device 8 \(a number of DLPack\); memory of the host \(1\) or of a CUDA"):
                comm.allreduce(OfAnotherDevice())
            # Nothing has begun.
            comm.check()
            return comm.allreduce(X).tolist()

        self.assertEqual(treering.threads(1, each), [X.tolist()])

    def test_operation_of_another_communicator(self):
        def each(comm):
            other = comm.dup()
            with self.assertRaisesRegex(ValueError, "op was made on another communicator; make it on this one"):
                comm.allreduce(X, other.scaled_sum(2, "float64"))

        treering.threads(1, each)

    def test_id(self):
        with self.assertRaisesRegex(treering.InvalidArgument, "id has 5 bytes; 128 are wanted, as treering.unique_id"):
            treering.init_rank(1, b"short", 0)
        with self.assertRaises(treering.InvalidArgument):
            treering.init_rank(1, bytes(128), 0)

    def test_box(self):
        def each(comm):
            with self.assertRaisesRegex(ValueError, "held has a box of 2 dimensions; 1 are wanted, as other boxes have"):
                treering.Exchange(comm, [((0,), (1,)), ((0, 0), (1, 1))], [], "int32")
            with self.assertRaisesRegex(ValueError, "more than 5 dimensions; 1 to 5 are wanted"):
                treering.Exchange(comm, [((0,) * 6, (1,) * 6)], [], "int32")

        treering.threads(1, each)

    def test_classes(self):
        for kind, bases in ((treering.InvalidArgument, ValueError), (treering.InvalidType, TypeError),
                            (treering.TimeoutError, TimeoutError), (treering.SystemError, SystemError),
                            (treering.InvalidUsage, RuntimeError)):
            self.assertTrue(issubclass(kind, bases) and issubclass(kind, treering.Error))
        self.assertEqual(treering.RemoteError("rank 2 (pid 17 on b) was lost in or before operation 9. Rank 0 waited for "
                                              "rank 2").ranks, [2])
        self.assertEqual(treering.TimeoutError("no progress: rank 1 (pid 3) has not entered it, rank 3 (pid 4) is alive, "
                                               "rank 2 (pid 9) is stopped").ranks, [1, 2])
        self.assertEqual(treering.RemoteError("rank 1 destroyed its communicator before operation 9").ranks, [1])
        self.assertEqual(treering.RemoteError("it has ended").ranks, [])


if __name__ == "__main__":
    unittest.main()
