# SPDX-License-Identifier: Apache-2.0
"""The timeline: each call of this rank with its begin and end, as a file that chrome://tracing and Perfetto show."""
import json
import os
import threading
import time

import torch.distributed as dist

_lock = threading.Lock()
_path = None
_events = []


def start_by_variable():
    """HOROVOD_TIMELINE names the file; "DYNAMIC" leaves it to start_timeline()."""
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path and path != "DYNAMIC":
        start_timeline(path)


def start_timeline(file_path, mark_cycles=False):
    """Notes the calls from here on. Rank 0 writes to the path, each other rank to one with its number behind."""
    global _path
    with _lock:
        _path = file_path if dist.get_rank() == 0 else f"{file_path}.{dist.get_rank()}"
        _events.clear()


def stop_timeline():
    """Writes the file."""
    global _path
    with _lock:
        path, _path = _path, None
        events = list(_events)
        _events.clear()
    if path is None:
        return
    # Calls overlap, so each has a begin and an end of its own, which its number joins.
    begun_and_ended = []
    for number, (call, name, size, begin, end) in enumerate(events):
        common = {"name": name, "cat": call, "id": number, "pid": dist.get_rank(), "tid": 0}
        begun_and_ended.append({**common, "ph": "b", "ts": begin, "args": {"bytes": size}})
        if end is not None:
            begun_and_ended.append({**common, "ph": "e", "ts": end})
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": begun_and_ended, "displayTimeUnit": "ms"}, file)


def begin(call, name, tensors):
    if _path is None:
        return None
    event = [call, name or call, sum(tensor.numel() * tensor.element_size() for tensor in tensors), time.time_ns() / 1000, None]
    with _lock:
        _events.append(event)
    return event


def end(event):
    if event is not None:
        event[4] = time.time_ns() / 1000
