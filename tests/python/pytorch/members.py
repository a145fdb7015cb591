# SPDX-License-Identifier: Apache-2.0
"""What programs of ranks under torchrun share: the group of the job, types, and values of which results are exact."""
import datetime
import sys
import unittest

import torch
import torch.distributed as dist

import treering.torch  # noqa: F401 - the entry point is there in an installed package alone

TIMEOUT = datetime.timedelta(seconds=60)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
UNSIGNED = (torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
NUMBERS = INTEGERS + FLOATS
# The library moves all, and does not compute with the last two.
MOVED = NUMBERS + UNSIGNED + COMPLEX + (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.int16, torch.uint16)
SIZES = (0, 1, 5, 1000, 70_001)


def main():
    """Runs the tests of the calling program on this rank; all ranks run the same ones in the same order."""
    torch.set_num_threads(1)
    dist.init_process_group("treering", timeout=TIMEOUT)
    rank = dist.get_rank()
    result = unittest.main(module="__main__", failfast=True, exit=False, verbosity=1 if rank == 0 else 0).result
    if result.wasSuccessful():
        dist.barrier()
        dist.destroy_process_group()
    sys.exit(0 if result.wasSuccessful() else 1)


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def values(of_rank, count, dtype, block=0):
    """Small numbers, exact in every type and in sums of a few ranks, that differ by rank and block."""
    numbers = (torch.arange(count) + 3 * of_rank + block) % 5
    if dtype.is_complex:
        return (numbers + 1j * ((numbers + 1) % 3)).to(dtype)
    if dtype == torch.bool:
        return (torch.arange(count) + of_rank + block) % 3 == 0
    return numbers.to(torch.float32).to(dtype)


def same(got, wanted):
    """The same dtype, shape and bits of the values."""
    assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    if not got.dtype.is_complex:
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.dtype.itemsize]
        got, wanted = got.view(bits), wanted.view(bits)
    if not torch.equal(got, wanted):
        raise AssertionError(f"got {got}, wanted {wanted}")


def total(count, dtype, block=0, of=None):
    """The sum over the ranks."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    parts = [values(each, count, dtype, block).to(wide) for each in (range(size()) if of is None else of)]
    return torch.stack(parts).sum(0).to(dtype)
