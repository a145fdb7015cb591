# SPDX-License-Identifier: Apache-2.0
"""Treering: collective communication between processes and threads.

    import numpy, treering
    comm = treering.init()                          # started by treering.run, mpirun, srun or torchrun
    print(comm.allreduce(numpy.ones(4)))            # the sum over all ranks

docs/python.md of the project is the guide.
"""
from __future__ import annotations

import atexit as _atexit
import os as _os
import typing as _typing

try:
    from . import _native
except ImportError as _error:
    raise ImportError(f"{_error}. In the source tree, build and install the package first: pip install .") from _error
from ._arrays import numpy as _numpy
from ._arrays import numpy_dtype as _numpy_dtype
from ._errors import (
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    InvalidType,
    InvalidUsage,
    NoLauncher,
    RemoteError,
    SystemError,
    TimeoutError,
)
from ._native import Compression, DoubleBuffer, Exchange, Group, Memory, Operation, Persistent, Registration, Request, Stream
from ._native import unique_id
from ._objects import Objects as _Objects

__all__ = [
    "Communicator", "Compression", "DeviceError", "DoubleBuffer", "Error", "Exchange", "Group", "InternalError",
    "InvalidArgument", "InvalidType", "InvalidUsage", "Memory", "NoLauncher", "Operation", "Persistent", "Registration", "RemoteError",
    "Request", "Stream", "SystemError", "TimeoutError", "data_types", "empty", "init", "init_rank", "library_version",
    "operations", "threads", "unique_id",
]

# Calls under way end, and other ranks hear that this one has left, before Python takes down what they use. Before that
# the launcher hears of it: so it knows who came first where all ranks end.
_atexit.register(_native.close_all)
if "_TREERING_RUN_NOTICE" in _os.environ:
    from ._notice import give as _give_notice

    _atexit.register(_give_notice)


class Communicator(_Objects):
    """One rank of a communicator. init(), init_rank() and threads() make them, and split(), dup(), shrink(), grow().

    Every rank makes the same calls in the same order. A call without `stream=` waits, without the GIL; Ctrl-C ends it
    and revokes the communicator, so that the other ranks do not wait for this one.
    """

    def __init__(self) -> None:
        raise TypeError("treering.init(), init_rank(), threads() and methods of a communicator make communicators")

    def __repr__(self) -> str:
        state = "" if self.is_open else ", closed"
        return f"<treering.Communicator rank {self.rank} of {self.size}{state}>"


def init(**settings: _typing.Any) -> Communicator:
    """The communicator of the processes that a launcher has started: python -m treering.run, mpirun, srun or torchrun.

    settings: `timeout` (seconds, of every wait; default 300), `name`, `algorithm`, `transports`, `deterministic`, `wire`,
    `device` and the other settings of trConfig_t; ranks must agree on them. Variables TREERING_* set what is not given.
    Raises NoLauncher where none is found, TimeoutError where ranks do not come.
    """
    try:
        return _native.init_from_environment(Communicator, **settings)
    except InvalidUsage as error:
        # The library's words for it; one that finds a part of a launcher's variables says which is missing.
        if str(error).startswith("nothing in the environment says which rank"):
            raise NoLauncher(f"{error}. `python -m treering.run -n 4 PROGRAM` starts ranks on this machine.") from None
        raise


def init_rank(size: int, id: bytes, rank: int, **settings: _typing.Any) -> Communicator:
    """Rank `rank` of `size` ranks that have the id that one process made by unique_id(). Settings: see init()."""
    return _native.init_rank(Communicator, size, id, rank, **settings)


def threads(n: int, function: _typing.Callable[[Communicator], _typing.Any]) -> list[_typing.Any]:
    """Runs function(comm) in n threads, the ranks of one communicator, and gives their results by rank.

    The first exception of a rank ends the calls of the others and is raised here. Communicators are closed at the end.
    """
    from ._threads import run_threads

    return run_threads(_native.init_all(Communicator, n), function)


def empty(shape: int | tuple[int, ...], dtype: _typing.Any = "float64") -> _typing.Any:
    """A zeroed NumPy array in memory that the other ranks of the machine map: collectives on it copy nothing."""
    from ._arrays import name_of_dtype

    kind = _numpy_dtype(name_of_dtype(dtype) or dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for extent in extents:
        count *= extent
    return _numpy().frombuffer(Memory(count * kind.itemsize), dtype=kind, count=count).reshape(extents)


def data_types() -> list[str]:
    """The names of the data types that arrays may have."""
    return _native.data_type_names()


def operations() -> list[str]:
    """The names of the operations that reductions take as `op`."""
    return _native.op_names().split(", ")


def library_version() -> str:
    """The version of the libtreering that is loaded."""
    number = _native.library_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


__version__ = library_version()
