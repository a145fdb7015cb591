# SPDX-License-Identifier: Apache-2.0
"""Treering as a backend of torch.distributed.

    import torch.distributed as dist
    dist.init_process_group("treering")         # under torchrun; an installed package is found without an import

docs/pytorch.md of the project is the guide.
"""
import atexit
import sys
import threading

import torch.distributed as _dist

from ._build import BuildError

__all__ = ["BuildError", "DoubleBuffer", "hooks", "load", "register"]

NAME = "treering"
_lock = threading.Lock()
_module = None


def load():
    """Loads the backend, and compiles it first where this PyTorch has none yet. init_process_group() does it by itself."""
    global _module
    with _lock:
        if _module is None:
            from . import _build

            _module = _build.load(lambda text: print(f"treering: {text}", file=sys.stderr, flush=True))
            # Groups end before the interpreter does: their works have tensors of it.
            atexit.register(_module.close_all)
    return _module


def _make(options, settings):
    if settings is not None:
        raise TypeError(f"init_process_group: pg_options is {settings!r}; the treering backend takes None")
    return load().make(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)


def register():
    """Tells torch.distributed of the backend. An import of this module does it, and torch.distributed by the entry point."""
    if NAME.upper() not in _dist.Backend._plugins:
        _dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu", "cuda"])


register()


# They use load().
from . import hooks  # noqa: E402
from .double_buffer import DoubleBuffer  # noqa: E402
