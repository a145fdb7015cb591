# SPDX-License-Identifier: Apache-2.0
"""The state of a training run, from one rank to all."""
import collections.abc

import torch
from torch.utils import _pytree

from . import _job
from ._calls import broadcast_, broadcast_async_, broadcast_object


def broadcast_parameters(params, root_rank):
    """Tensors of a state_dict(), or of a list of (name, tensor): those of the root, on all ranks."""
    _job.rank()
    if isinstance(params, dict):
        named = params.items()
    elif isinstance(params, collections.abc.Iterable):
        named = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    else:
        raise ValueError(f"params is of type {type(params).__name__}; a state_dict() or named parameters are wanted")
    handles = [broadcast_async_(tensor.data, root_rank, name) for name, tensor in named if torch.is_tensor(tensor)]
    for handle in handles:
        handle.result()


class _Place:
    """Where a tensor of the root was: what is needed to make one."""

    def __init__(self, tensor):
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def broadcast_optimizer_state(optimizer, root_rank):
    """The root's state and settings, for an optimizer of the same parameters."""
    is_root = _job.rank() == root_rank
    state = optimizer.state_dict() if is_root else None
    leaves, shape = _pytree.tree_flatten(state)
    places = [_Place(leaf) if torch.is_tensor(leaf) else leaf for leaf in leaves]
    places, shape = broadcast_object((places, shape), root_rank)
    received = []
    for i, place in enumerate(places):
        if not isinstance(place, _Place):
            received.append(place)
            continue
        tensor = leaves[i].contiguous() if is_root else torch.empty(place.shape, dtype=place.dtype)
        received.append(broadcast_(tensor, root_rank))
    if not is_root:
        groups = optimizer.param_groups
        optimizer.load_state_dict(_pytree.tree_unflatten(received, shape))
        # A scheduler of the optimizer that this one was made from has the groups that were there.
        for group, loaded in zip(groups, optimizer.param_groups):
            group.update(loaded)
        optimizer.param_groups = groups
