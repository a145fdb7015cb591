# SPDX-License-Identifier: Apache-2.0
"""The scenarios that run a training loop (bench/peers/loop.h): a computation of a given time and an exchange of gradients."""
import os
import tempfile

from comparison import points
from netlab import Lab

from .sessions import Sessions
from .sizes import OURS, placement
from .verdicts import median


def resnet50_gradients():
    """Numbers of elements of the 161 gradients of ResNet-50, as bench/training/resnet50.h has them."""
    sizes = []

    def convolution(inputs, outputs, width):
        sizes.extend([inputs * outputs * width * width, outputs, outputs])  # the two of the batch normalisation, too

    convolution(3, 64, 7)
    inputs, width = 64, 64
    for blocks in (3, 4, 6, 3):
        for block in range(blocks):
            convolution(inputs, width, 1)
            convolution(width, width, 3)
            convolution(width, 4 * width, 1)
            if block == 0:
                convolution(inputs, 4 * width, 1)
            inputs = 4 * width
        width *= 2
    return sizes + [inputs * 1000, 1000]


class Gradients:
    """A file with numbers of elements, for the drivers."""

    def __init__(self, counts):
        self._file = tempfile.NamedTemporaryFile("w", prefix="netlab-gradients-", suffix=".txt")
        self._file.writelines(f"{count}\n" for count in counts)
        self._file.flush()

    def loop(self, variant, compute_us, steps, compute="sleep"):
        return f"loop {variant} {self._file.name} {compute} {compute_us:.0f} {steps}"


# Column of the table: (library, variant of the loop).
RESNET = {
    "treering/plain": ("treering/fp32", "plain"),
    "treering/fused": ("treering/fp32", "fused"),
    "treering/fused-fp16": ("treering/fp16", "fused"),
    "treering/fused-fp16-double": ("treering/fp16", "double"),
    "gloo plain": ("gloo", "plain"),
    "gloo fused": ("gloo", "fused"),
    "openmpi plain": ("openmpi", "plain"),
    "openmpi fused": ("openmpi", "fused"),
}


def resnet_scenario(record):
    """A training step with the gradients of ResNet-50, 1 to 8 hosts on links of 1 Gbit/s."""
    settings = record.settings
    gradients = Gradients(resnet50_gradients() if not settings.quick else [1 << 18, 64, 1 << 16, 64])
    compute_us = settings.compute_ms * 1e3
    for mbit in settings.mbit or [1000]:
        title = f"ResNet-50, {mbit} Mbit/s, {settings.compute_ms:g} ms of computation"
        table = record.new_table(title, "hosts")
        for hosts in settings.host_counts or [1, 2, 4, 8]:
            # One host is a Lab's first; its ranks talk to no other host.
            with Lab(max(2, hosts), mbit=mbit) as lab, Sessions(lab, placement(hosts, 1), settings, ["fp16"]) as sessions:
                of_name = {session.name: session for session in sessions.sessions}
                for turn in range(settings.rounds):
                    record.note_other_work(title)
                    for column, (library, variant) in RESNET.items():
                        settings.progress(f"{title}, {hosts} hosts, round {turn + 1}/{settings.rounds}: {column}")
                        if library in of_name:
                            command = gradients.loop(variant, compute_us, 1 if settings.quick else settings.steps)
                            record.add(table, column, hosts, sessions.ask(of_name[library], command))
            settings.progress("")
        record.print_table(title)


def double_buffer_scenario(record):
    """Double buffering against a plain loop, at compute = communication, and with fp16 at half of it."""
    settings = record.settings
    bytes_each = 4 * points.MIB
    gradients = Gradients([bytes_each // 4])
    steps = 5 if settings.quick else 20
    for mbit in settings.mbit or [1000]:
        for compute in ("sleep", "work"):
            title = f"4 hosts x 1 rank, {mbit} Mbit/s, loop with 4 MiB of gradients, computation by {compute}; ratio of it to communication"
            table = record.new_table(title, "ratio")
            with Lab(4, mbit=mbit) as lab, Sessions(lab, placement(4, 1), settings, ["fp16"]) as sessions:
                of_name = {session.name: session for session in sessions.sessions}
                if "treering/fp16" not in of_name or OURS not in of_name:
                    continue
                _one_shape(record, sessions, of_name, title, table, gradients, steps, compute)
            record.print_table(title)
            _expect_overlap(record, title, table)


def _one_shape(record, sessions, of_name, title, table, gradients, steps, compute):
    for turn in range(record.settings.rounds):
        record.note_other_work(title)
        alone = sessions.ask(of_name[OURS], gradients.loop("plain", 0, steps))
        if alone is None:
            return
        for ratio in (1, 0.5):
            for library in (OURS, "treering/fp16"):
                for variant in ("plain", "double"):
                    record.settings.progress(f"{title}, round {turn + 1}: {library} {variant} {ratio}")
                    column = f"{library}-{variant}"
                    command = gradients.loop(variant, ratio * alone[0], steps, compute)
                    record.add(table, column, ratio, sessions.ask(of_name[library], command))
    record.settings.progress("")


def _expect_overlap(record, title, table):
    for ratio, library, target in ((1, OURS, 1.8), (0.5, "treering/fp16", 2.1)):
        plain, double = median(table, OURS + "-plain", ratio), median(table, library + "-double", ratio)
        if plain and double:
            what = "double buffer" + (" with fp16" if library != OURS else "")
            record.expect(title, f"{what} against the plain loop at compute = {ratio:g} x communication", plain / double,
                          target)
