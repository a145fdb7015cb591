# SPDX-License-Identifier: Apache-2.0
"""The files of the repository, each read once."""

import functools

CODE = ("src", "include", "python", "tools", "tests", "bench")
SOURCES = (".h", ".c", ".cpp", ".cc", ".cu", ".cuh", ".py")


@functools.cache
def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sources(folder):
    return [path for path in files_below(folder) if path.suffix in SOURCES]


@functools.cache
def text_at(path, changed, size):
    return path.read_text()


def text_of(path):
    """Read once: the self-test checks a copy many times, of which one file has changed."""
    status = path.stat()
    return text_at(path, status.st_mtime_ns, status.st_size)
