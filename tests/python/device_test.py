# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of GPUs, on the stand-in for GPUs."""
import ctypes
import threading
import unittest

import numpy

import treering

COUNT = 1000
library = ctypes.CDLL("libtreering.so.0")  # the one that the package has loaded
library.trGetLastError.restype = ctypes.c_char_p


class Array:
    """Memory of a GPU that offers __cuda_array_interface__, as arrays of CuPy do."""

    def __init__(self, device, values, **more):
        self.address = ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        assert library.trDeviceMemAlloc(ctypes.byref(self.address), ctypes.c_size_t(values.nbytes), device) == 0
        assert library.trStreamFromCuda(ctypes.byref(self.stream), device, None) == 0  # the default stream
        self.copy(self.address, values.ctypes.data_as(ctypes.c_void_p), values.nbytes)
        self.__cuda_array_interface__ = {"shape": values.shape, "typestr": values.dtype.str, "version": 3,
                                         "data": (self.address.value, False), **more}

    def copy(self, to, source, size):
        code = library.trDeviceMemCopy(to, source, ctypes.c_size_t(size), self.stream)
        assert code == 0, library.trGetLastError(None)

    def values(self):
        got = numpy.empty(self.__cuda_array_interface__["shape"], self.__cuda_array_interface__["typestr"])
        self.copy(got.ctypes.data_as(ctypes.c_void_p), self.address, got.nbytes)
        library.trDeviceMemFree(self.address)
        return got


class ByDlpack:
    """Says that it is on a GPU; its memory is the host's, which the library sees."""

    def __init__(self, values, device):
        self.values, self.device, self.streams = values, device, []

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.values.__dlpack__()


class Devices(unittest.TestCase):
    def test_producers(self):
        comm = treering.init_rank(1, treering.unique_id(), 0, device=1, timeout=60)
        x = numpy.arange(COUNT, dtype="float32")
        array = ByDlpack(x, 1)
        numpy.testing.assert_array_equal(comm.allreduce(array), x)
        self.assertEqual(array.streams, [1])
        # A GPU that there is not has no stream to wait for.
        with self.assertRaises(treering.Error):
            comm.allreduce(ByDlpack(x, 99))
        # An interface that says nothing of streams.
        out = Array(1, numpy.zeros_like(x))
        comm.allreduce(Array(1, x), out=out)
        numpy.testing.assert_array_equal(out.values(), x)
        comm.close()

    def test_allreduce(self):
        results = [None] * 2
        id = treering.unique_id()

        def work(rank):
            comm = treering.init_rank(2, id, rank, device=rank, timeout=60)
            x = numpy.arange(COUNT, dtype="float32") * (rank + 1)
            array = Array(rank, x, stream=0 if rank == 0 else None)  # 0: the default one of the stand-in
            comm.allreduce(array, out=array)
            # From the memory of a GPU into that of the host.
            out = numpy.empty(COUNT, "float32")
            comm.allreduce(array, "max", out=out)
            results[rank] = (array.values(), out)
            comm.barrier()
            comm.close()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = numpy.arange(COUNT, dtype="float32") * 3
        for result in results:
            for got in result:
                numpy.testing.assert_array_equal(got, wanted)


if __name__ == "__main__":
    unittest.main()
