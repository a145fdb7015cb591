# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries: anything with the buffer protocol, DLPack or __cuda_array_interface__."""
import array
import ctypes
import importlib.util
import unittest

import numpy

import treering


class ByDlpack:
    """Offers DLPack alone, as older producers do: without versions."""

    def __init__(self, values):
        self.values = values

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self):
        return self.values.__dlpack__()


class ByInterface:
    """Offers __cuda_array_interface__ alone. The memory is the host's: the library looks where memory lies."""

    def __init__(self, values, readonly=False, **more):
        self.values = values
        self.__cuda_array_interface__ = {"shape": values.shape, "typestr": values.dtype.str, "version": 3,
                                         "data": (values.ctypes.data, readonly), **more}


def on_one_rank(function):
    return treering.threads(1, function)[0]


class Arrays(unittest.TestCase):
    def test_buffers(self):
        def each(comm):
            self.assertEqual(comm.allreduce(array.array("i", [1, 2])).tolist(), [1, 2])
            self.assertEqual(comm.allreduce(b"\1\2").tolist(), [1, 2])
            self.assertEqual(comm.allreduce(memoryview(bytearray(b"\1\2\3\4"))[1:3]).tolist(), [2, 3])
            out = bytearray(2)
            self.assertIs(comm.broadcast(b"ab", out=out), out)
            self.assertEqual(out, b"ab")
            own = (ctypes.c_double * 3)(1, 2, 3)
            comm.allreduce(own, out=own)
            self.assertEqual(comm.allreduce(numpy.float32(3)).item(), 3)

        on_one_rank(each)

    def test_dlpack(self):
        def each(comm):
            x = numpy.arange(6.0).reshape(2, 3)
            got = comm.allreduce(ByDlpack(x))
            self.assertIsInstance(got, numpy.ndarray)
            self.assertEqual(got.tolist(), x.tolist())
            out = numpy.empty((2, 3))
            comm.allreduce(x, out=ByDlpack(out))
            self.assertEqual(out.tolist(), x.tolist())
            with self.assertRaisesRegex(ValueError, r"x has strides \(3, 2\) \(elements\); a C-contiguous"):
                comm.allreduce(ByDlpack(x[:, ::2]))

        on_one_rank(each)

    def test_cuda_array_interface(self):
        def each(comm):
            x = numpy.arange(6, dtype="float32").reshape(2, 3)
            out = numpy.empty_like(x)
            comm.allreduce(ByInterface(x), out=ByInterface(out))
            self.assertEqual(out.tolist(), x.tolist())
            comm.allreduce(ByInterface(x, strides=(12, 4)), out=ByInterface(out, strides=None))
            with self.assertRaisesRegex(ValueError, r"x has strides \(24, 4\) \(bytes\)"):
                comm.allreduce(ByInterface(x, strides=(24, 4)))
            with self.assertRaisesRegex(ValueError, "out is read-only"):
                comm.allreduce(x, out=ByInterface(out, readonly=True))
            with self.assertRaisesRegex(TypeError, "x has dtype <i2"):
                comm.allreduce(ByInterface(x.astype("int16")))

        on_one_rank(each)

    def test_dlpack_where_the_interface_names_no_stream(self):
        asked = []

        class ByBoth(ByInterface):
            def __dlpack_device__(self):
                return self.values.__dlpack_device__()

            def __dlpack__(self):
                asked.append(1)
                return self.values.__dlpack__()

        def each(comm):
            x = numpy.arange(6, dtype="float32").reshape(2, 3)
            self.assertEqual(comm.allreduce(ByBoth(x)).tolist(), x.tolist())
            self.assertEqual(asked, [1])
            comm.allreduce(ByBoth(x, stream=None))
            self.assertEqual(asked, [1])

        on_one_rank(each)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not there")
    def test_torch(self):
        import torch

        def each(comm):
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64):
                x = torch.ones(2, 3).to(dtype)
                got = comm.allreduce(x, "bit_or" if dtype is torch.bool else "sum")
                self.assertIsInstance(got, torch.Tensor)
                self.assertEqual((got.dtype, got.shape), (dtype, x.shape))
                self.assertTrue(torch.equal(got, x))
            self.assertIs(comm.allreduce(x, out=x), x)
            with self.assertRaisesRegex(ValueError, "C-contiguous"):
                comm.allreduce(torch.ones(4, 4).t()[1:])

        on_one_rank(each)

    @unittest.skipUnless(importlib.util.find_spec("jax"), "JAX is not there")
    def test_jax(self):
        import jax

        def each(comm):
            x = jax.numpy.arange(6, dtype="float32").reshape(2, 3)
            got = comm.allreduce(x)
            self.assertIsInstance(got, jax.Array)
            self.assertEqual(got.tolist(), x.tolist())
            self.assertIsInstance(comm.allreduce(x.astype("bfloat16")), jax.Array)
            with self.assertRaisesRegex(ValueError, "out is read-only"):
                comm.allreduce(x, out=x)

        on_one_rank(each)


if __name__ == "__main__":
    unittest.main()
