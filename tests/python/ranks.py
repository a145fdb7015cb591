# SPDX-License-Identifier: Apache-2.0
"""What programs of ranks share: the communicator of the job, the types, and values of which results are exact."""
import os
import random
import sys
import unittest

import numpy

import treering

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from seed import test_seed  # noqa: E402

comm = None
DRAW = None


def main():
    """Runs the tests of the calling program on this rank; all ranks run the same ones in the same order."""
    global comm, DRAW
    comm = treering.init(timeout=60)
    # All ranks draw the same numbers.
    seed = comm.broadcast_object(test_seed() if comm.rank == 0 else None)
    DRAW = random.Random(seed)
    result = unittest.main(module="__main__", failfast=True, exit=False, verbosity=1 if comm.rank == 0 else 0).result
    if result.wasSuccessful():
        comm.barrier()
    comm.close()
    sys.exit(0 if result.wasSuccessful() else 1)


def dtypes():
    """(name, NumPy's dtype) of each type of the library that NumPy or ml_dtypes has."""
    found = []
    for name in treering.data_types():
        try:
            found.append((name, treering._arrays.numpy_dtype(name)))
        except TypeError:
            if comm.rank == 0:
                print(f"not tested: {name} (ml_dtypes is not there)")
    return found


def kind_of(name):
    if name == "bool":
        return "bool"
    if name.startswith("complex"):
        return "complex"
    return "integer" if "int" in name else "float"


def input_of(rank, shape, name, dtype, op="sum"):
    """The array of a rank: the same wherever it is asked for. Small numbers, of which sums and products are exact."""
    count = int(numpy.prod(shape))
    draw = numpy.random.default_rng([rank, count, len(op)])
    kind = kind_of(name)
    if kind == "bool":
        values = draw.integers(0, 2, count)
    elif kind == "integer" and op not in ("sum", "prod", "avg"):
        values = draw.integers(0, 120, count)
    elif op == "prod":
        values = draw.integers(1, 3, count)
    else:
        values = draw.integers(0, 2, count)
    if kind == "complex":
        values = values + 1j * draw.integers(0, 2, count)
    return values.astype(dtype).reshape(shape)


def same(got, wanted):
    """The same dtype, shape and values."""
    assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if not numpy.array_equal(got, wanted):
        raise AssertionError(f"got {got}, wanted {wanted}")
