# SPDX-License-Identifier: Apache-2.0
"""The sizes that are measured, the number of calls of each, and the ranges over which the targets are stated."""
import math

KIB, MIB = 1024, 1024 * 1024

# Sizes of one start of a driver: small enough that the libraries take turns every second or so.
BATCH_LIMITS = [4 * KIB, MIB, 16 * MIB, 1 << 62]

# (name, least bytes, most bytes, buffers that it is stated for, {ranks: target ratio}). "least": not the geometric
# mean but the least ratio; "openmpi": against that library alone, as the target for more ranks than cores is stated.
RANGES = [
    ("any size, least", 8, 1 << 62, "any", {2: 1.0, 4: 1.0}),
    ("openmpi, least", 8, 1 << 62, "any", {8: 1.0, 16: 1.0}),
    ("8 B - 4 KiB", 8, 4 * KIB, "any", {2: 1.15, 4: 1.8}),
    ("8 KiB - 1 MiB", 8 * KIB, MIB, "any", {2: 1.5, 4: 2.0}),
    (">= 16 MiB", 16 * MIB, 1 << 62, "malloc", {2: 2.0, 4: 3.0}),
    (">= 16 MiB", 16 * MIB, 1 << 62, "shared", {2: 4.0, 4: 4.5}),
]

# The same for every other collective.
OTHER_RANGES = [
    ("any size, least", 8, 1 << 62, "any", {4: 1.0}),
    ("8 B - 64 MiB", 8, 64 * MIB, "any", {4: 1.5}),
]


def parse_size(text):
    """8, 64K, 1M, 2G: powers of 1024."""
    units = {"K": KIB, "M": MIB, "G": 1024 * MIB}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdigit() or int(number) * unit < 4:
        raise ValueError(f'"{text}" is not a size: 4 or more, with K, M or G behind it if wanted')
    return int(number) * unit


def format_size(size):
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def sizes_between(least, most, factor):
    sizes = []
    size = least
    while size <= most:
        sizes.append(size)
        size *= factor
    return sizes


def iterations_for(size, ranks, cores, quick):
    """About 40 ms a point at 1 us + 1 GB/s a call; with more ranks than cores a call takes far longer."""
    estimated_us = 1.0 + size / 1000.0
    budget_us = 10_000 if quick else 40_000
    most = 20_000
    if ranks > cores:
        # A library that spins waits for the scheduler's time slices: milliseconds a call.
        estimated_us = (estimated_us + 20) * ranks / cores
        most = budget_us // 200
    return max(3, min(most, int(budget_us / estimated_us)))


def batches(sizes):
    """The sizes in runs that one start of a driver measures."""
    result = []
    least = 0
    for limit in BATCH_LIMITS:
        batch = [size for size in sizes if least < size <= limit]
        least = limit
        if batch:
            result.append(batch)
    return result


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else None


def rotated(libraries, by):
    """Another one first each time: it finds the links and cores as the break before left them."""
    by %= max(1, len(libraries))
    return libraries[by:] + libraries[:by]
