# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for PyTorch, on treering.

    import treering.horovod as hvd          # instead of: import horovod.torch as hvd
    hvd.init()

docs/horovod.md of the project says what is there, and what differs.
"""
from ._calls import (Average, Handle, Max, Min, Op, Product, Sum, allgather, allgather_async, allgather_object, allreduce,
                     allreduce_, allreduce_async, allreduce_async_, alltoall, alltoall_async, barrier, broadcast, broadcast_,
                     broadcast_async, broadcast_async_, broadcast_object, grouped_allreduce, grouped_allreduce_,
                     grouped_allreduce_async, grouped_allreduce_async_, poll, reducescatter, reducescatter_async, synchronize)
from ._job import cross_rank, cross_size, init, is_homogeneous, is_initialized, local_rank, local_size, rank, shutdown, size
from ._optimizer import DistributedOptimizer
from ._state import broadcast_optimizer_state, broadcast_parameters
from ._timeline import start_timeline, stop_timeline
from .compression import Compression

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "Handle", "Max", "Min", "Op", "Product", "Sum", "allgather", "allgather_async",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier",
    "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "cross_rank", "cross_size", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size", "poll", "rank",
    "reducescatter", "reducescatter_async", "shutdown", "size", "start_timeline", "stop_timeline", "synchronize",
]
