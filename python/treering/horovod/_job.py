# SPDX-License-Identifier: Apache-2.0
"""The job: its ranks, and which of them share a host."""
import os
import socket

import torch.distributed as dist

import treering
import treering.torch

# Of treering.run, Open MPI and Slurm, MPICH, and torchrun: one of them is there in a job of several ranks.
_OF_LAUNCHERS = ("TREERING_RANK", "PMIX_RANK", "PMI_FD", "RANK")
_hosts = None  # of all ranks, by number
_made_group = False


def init():
    """Joins the job that torchrun, mpirun, srun or treering.run has started; a program without one is a job of one rank.

    Where torch.distributed has a default group already, that one is used.
    """
    global _hosts, _made_group
    if _hosts is not None:
        return
    if not dist.is_initialized():
        if "MASTER_ADDR" in os.environ and "RANK" in os.environ:
            dist.init_process_group(treering.torch.NAME)
        elif any(name in os.environ for name in _OF_LAUNCHERS) or os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
            _init_by_launcher()
        else:
            dist.init_process_group(treering.torch.NAME, store=dist.HashStore(), rank=0, world_size=1)
        _made_group = True
    own = os.environ.get("TREERING_HOSTID") or socket.gethostname()
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, own)
    _hosts = hosts
    from . import _timeline

    _timeline.start_by_variable()


def _init_by_launcher():
    """The launcher's ranks agree on a store through a communicator of the library."""
    comm = treering.init()
    rank, size = comm.rank, comm.size
    store = None
    if rank == 0:
        address = _address() if size > 1 else "127.0.0.1"
        store = dist.TCPStore(address, 0, size, is_master=True, wait_for_workers=False)
        where = (address, store.port)
    else:
        where = None
    where = comm.broadcast_object(where, root=0)
    if store is None:
        store = dist.TCPStore(*where, size, is_master=False)
    comm.close()
    dist.init_process_group(treering.torch.NAME, store=store, rank=rank, world_size=size)


def _address():
    """Of this host, for others."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name


def shutdown():
    global _hosts, _made_group
    if _hosts is None:
        return
    from . import _timeline

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
