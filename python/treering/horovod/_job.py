# SPDX-License-Identifier: Apache-2.0
"""The job: its ranks, and which of them share a host."""
import atexit
import os
import socket

import torch.distributed as dist

import treering
import treering.torch

from . import _timeline

_hosts = None  # of all ranks, by number
_store = None  # through which the ranks of a launcher meet; for init() after shutdown(), too
_times_met = 0
_made_group = False


def init():
    """Joins the job that torchrun, mpirun, srun or treering.run has started; a program without one is a job of one rank.

    Where torch.distributed has a default group already, that one is used.
    """
    global _hosts, _made_group
    if _hosts is not None:
        return
    if not dist.is_initialized():
        if "RANK" in os.environ and "MASTER_ADDR" in os.environ:  # of torchrun, which has a store for its ranks
            dist.init_process_group(treering.torch.NAME)
        else:
            _init_by_launcher()
        _made_group = True
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, _host())
    _hosts = hosts
    atexit.register(shutdown)
    _timeline.start_by_variable()


def _init_by_launcher():
    global _store, _times_met
    if _store is None:
        _store = _make_store()
    store, rank, size = _store
    _times_met += 1
    dist.init_process_group(treering.torch.NAME, store=dist.PrefixStore(f"init {_times_met}", store), rank=rank, world_size=size)


def _make_store():
    """(store, rank, ranks): the ranks agree on a store through a communicator of the library."""
    try:
        comm = treering.init()
    except treering.NoLauncher:
        return dist.HashStore(), 0, 1
    with comm:
        hosts = comm.allgather_objects(_host())
        where = None
        if comm.rank == 0:
            address = "127.0.0.1" if len(set(hosts)) == 1 else _address()
            store = dist.TCPStore(address, 0, comm.size, is_master=True, wait_for_workers=False)
            where = address, store.port
        where = comm.broadcast_object(where, root=0)
        if comm.rank != 0:
            store = dist.TCPStore(*where, comm.size, is_master=False)
        return store, comm.rank, comm.size


def _host():
    """What the ranks of a machine have in common: as in the library, its boot."""
    name = os.environ.get("TREERING_HOSTID")
    if name:
        return name
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _address():
    """The address of this host, for others."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise RuntimeError(f"the ranks are on several hosts, and the name of rank 0's, {name}, has no address ({error}): start with "
                           f"torchrun, which is told an address") from error
    return name


def shutdown():
    global _hosts, _made_group
    if _hosts is None:
        return
    atexit.unregister(shutdown)
    _timeline.stop_timeline()
    if _made_group and dist.is_initialized():
        dist.destroy_process_group()
    _hosts, _made_group = None, False


def is_initialized():
    return _hosts is not None


def _joined():
    if _hosts is None:
        raise ValueError("treering.horovod is not initialized; call init() first")
    return _hosts


def rank():
    _joined()
    return dist.get_rank()


def size():
    return len(_joined())


def local_rank():
    """This rank's number among those of its host."""
    hosts = _joined()
    return hosts[:rank()].count(hosts[rank()])


def local_size():
    hosts = _joined()
    return hosts.count(hosts[rank()])


def cross_rank():
    """The number of this host among those that have as high a local rank."""
    return _peers_across().index(rank())


def cross_size():
    return len(_peers_across())


def _peers_across():
    """The ranks with this one's local rank, of each host that has one."""
    hosts, own = _joined(), local_rank()
    return [each for each in range(size()) if hosts[:each].count(hosts[each]) == own]


def is_homogeneous():
    """Whether all hosts have as many ranks."""
    hosts = _joined()
    return len({hosts.count(host) for host in hosts}) == 1
