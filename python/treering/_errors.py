# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each result of the library that is a failure, with its message."""
from __future__ import annotations

import builtins
import re


class Error(Exception):
    """A call of the library failed. The text is the library's: which call, why, and what to do."""


class DeviceError(Error):
    """A call of the GPU's driver failed; the text has its name and error."""


class SystemError(Error, builtins.SystemError):  # noqa: A001 - the library's word
    """A system call failed; the text has its name and errno."""


class InternalError(Error):
    """A defect of the library."""


class InvalidArgument(Error, ValueError):
    """An argument is wrong by itself; the text names it, what came, and what is wanted."""


class InvalidType(InvalidArgument, TypeError):
    """An argument is of a wrong type, or an array of a wrong dtype."""


class InvalidUsage(Error, RuntimeError):
    """Arguments that do not fit one another, the other ranks, or the state of the object."""


class NoLauncher(InvalidUsage):
    """init(): nothing in the environment says which rank this process is."""


class _OfRanks(Error):
    # "rank 2 (pid 17 on b) has died", not "rank 3 (pid 18) is alive, ..." and "Rank 0 waited for rank 2".
    _described = re.compile(r"\brank (\d+) \(pid \d+[^)]*\)(?! is alive)(?! waited)")
    _first = re.compile(r"\brank (\d+)\b")

    @property
    def ranks(self) -> list[int]:
        """The ranks at fault that the text names, in its order; empty where it names none."""
        text = str(self)
        found = self._described.findall(text) or self._first.findall(text)[:1]
        return [int(rank) for rank in dict.fromkeys(found)]


class RemoteError(_OfRanks):
    """Another rank died, left, was aborted or failed. `ranks` has those that the text names."""


class TimeoutError(_OfRanks, builtins.TimeoutError):  # noqa: A001 - as Python's, which it is
    """The deadline passed. `ranks` has those that were waited for, as far as the text names them."""


_BY_CODE = {
    1: DeviceError,
    2: SystemError,
    3: InternalError,
    4: InvalidArgument,
    5: InvalidUsage,
    6: RemoteError,
    8: TimeoutError,
}


def error_of(code, message):
    return _BY_CODE.get(code, Error)(message)


# Tracebacks show the names that programs use.
for _kind in list(vars().values()):
    if isinstance(_kind, type) and issubclass(_kind, Error):
        _kind.__module__ = "treering"
