# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks, as pickles. Unpickling runs code that the sender chose: ranks trust one another."""
from __future__ import annotations

import pickle
import typing

from . import _native
from ._arrays import numpy
from ._errors import InvalidArgument


def _pickled(value):
    return numpy().frombuffer(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), dtype="uint8")


def _length(count):
    return numpy().array([count], dtype="int64")


def _unpickled(array):
    return pickle.loads(memoryview(array))


class Objects(_native.CommunicatorBase):
    """The calls for Python objects of any kind that pickle knows. They block."""

    def broadcast_object(self, value: typing.Any = None, root: int = 0) -> typing.Any:
        """The root's object on every rank; `value` does not count on the others."""
        _native.refuse_in_group("broadcast_object")
        data = _pickled(value) if self.rank == root else None
        length = _length(0 if data is None else data.size)
        self.broadcast(length, root, out=length)
        if data is None:
            data = numpy().empty(int(length[0]), dtype="uint8")
            self.broadcast(None, root, out=data)
            return _unpickled(data)
        self.broadcast(data, root)
        return value

    def allgather_objects(self, value: typing.Any) -> list[typing.Any]:
        """A list of the objects of all ranks, by rank, on every rank."""
        _native.refuse_in_group("allgather_objects")
        data = _pickled(value)
        lengths = self.allgather(_length(data.size)).tolist()
        return self._cut(self.allgatherv(data, lengths), lengths)

    def gather_objects(self, value: typing.Any, root: int = 0) -> list[typing.Any] | None:
        """A list of the objects of all ranks on rank `root`; None on the others."""
        _native.refuse_in_group("gather_objects")
        data = _pickled(value)
        lengths = self.gather(_length(data.size), root)
        if self.rank != root:
            self.gatherv(data, None, root)
            return None
        return self._cut(self.gatherv(data, lengths.tolist(), root), lengths.tolist())

    def scatter_objects(self, values: typing.Sequence[typing.Any] | None = None, root: int = 0) -> typing.Any:
        """The entry of the root's list for this rank; `values` does not count on the others."""
        _native.refuse_in_group("scatter_objects")
        length = _length(0)
        if self.rank != root:
            self.scatter(None, root, out=length)
            data = numpy().empty(int(length[0]), dtype="uint8")
            return _unpickled(self.scatterv(None, None, root, out=data))
        values = self._one_for_each_rank("scatter_objects", values)
        parts = [_pickled(value) for value in values]
        lengths = [part.size for part in parts]
        self.scatter(numpy().array(lengths, dtype="int64"), root, out=length)
        self.scatterv(numpy().concatenate(parts), lengths, root)
        return values[root]

    def alltoall_objects(self, values: typing.Sequence[typing.Any]) -> list[typing.Any]:
        """Entry d of rank s's list becomes entry s of rank d's."""
        _native.refuse_in_group("alltoall_objects")
        parts = [_pickled(value) for value in self._one_for_each_rank("alltoall_objects", values)]
        lengths = [part.size for part in parts]
        received = self.alltoall(numpy().array(lengths, dtype="int64")).tolist()
        return self._cut(self.alltoallv(numpy().concatenate(parts), lengths, received), received)

    def send_object(self, value: typing.Any, dest: int) -> None:
        """Sends an object to rank `dest`."""
        _native.refuse_in_group("send_object")
        data = _pickled(value)
        self.send(_length(data.size), dest)
        self.send(data, dest)

    def recv_object(self, source: int) -> typing.Any:
        """An object that rank `source` sends."""
        _native.refuse_in_group("recv_object")
        length = self.recv(_length(0), source)
        return _unpickled(self.recv(numpy().empty(int(length[0]), dtype="uint8"), source))

    def _one_for_each_rank(self, call, values):
        values = list(values or ())
        if len(values) != self.size:
            raise InvalidArgument(f"{call}: values has {len(values)} entries; {self.size} are wanted, one for each rank")
        return values

    @staticmethod
    def _cut(data, lengths):
        values, begin = [], 0
        for length in lengths:
            values.append(_unpickled(data[begin:begin + length]))
            begin += length
        return values
