# SPDX-License-Identifier: Apache-2.0
"""The scenarios that measure allreduce over sizes: links, hosts, shuffled, latency, compression."""
import math
import statistics

from comparison import points
from netlab import Lab

from . import links
from .sessions import Sessions
from .verdicts import least_ratio, median

OURS = "treering/fp32"
LARGE = 4 * points.MIB


def placement(hosts, per_host, shuffled=False):
    """Rank -> host: the ranks of a host follow one another, or go round all hosts."""
    return [rank % hosts if shuffled else rank // per_host for rank in range(hosts * per_host)]


def calls(size, ranks, mbit, quick, known_us):
    """About 0.15 s of calls at the rate of the link and some 60 us a message; 0.4 s of a library known to be slower."""
    expected_us = 60 * max(1.0, math.log2(ranks)) + (2 * size * 8 / mbit if mbit else size / 200)
    budget_us = 30e3 if quick else 150e3
    return max(2, min(2000, int(budget_us / expected_us), int(2.7 * budget_us / known_us)))


def of_link(hosts, size, rate_mbit, time_us):
    """The part reached of what the links allow: each must carry 2 (h-1) / h of the bytes, each way."""
    return 2 * (hosts - 1) / hosts * size * 8 / rate_mbit / time_us


def measure(record, title, lab, places, sizes, more=(), mbit=0, each_round=lambda: None, prepare=lambda sessions: None):
    """Rounds in which each library has its turn at every size."""
    settings = record.settings
    table = record.new_table(title)
    with Sessions(lab, places, settings, more) as sessions:
        prepare(sessions)
        for turn in range(settings.rounds):
            record.note_other_work(title)
            each_round()
            last_us = {}
            for number, size in enumerate(sizes):
                settings.progress(f"{title}, round {turn + 1}/{settings.rounds}, {points.format_size(size)}")
                for session in points.rotated(sessions.sessions, turn + number):
                    known_us = median(table, session.name, size) or last_us.get(session.name, 1)
                    count = calls(size, len(places), mbit, settings.quick, known_us)
                    result = sessions.ask(session, f"point {size} {count}")
                    record.add(table, session.name, size, result)
                    last_us[session.name] = result[0] if result else 1
    settings.progress("")
    return table


def on_link(record, title, hosts, per_host, mbit, shuffled=False):
    """(table, what iperf3 measured in the same rounds, bus rates of Treering as parts of that)."""
    rates = []
    with Lab(hosts, mbit=mbit) as lab:
        def measure_link():
            rates.append(links.rate_of_link(lab, 0, 1, mbit))

        table = measure(record, title, lab, placement(hosts, per_host, shuffled), record.settings.sizes,
                        mbit=mbit, each_round=measure_link)
    if record.settings.collective != "allreduce":  # what follows is stated for it alone
        record.links[title] = statistics.median(rates)
        record.print_table(title)
        return table, {}
    return table, print_parts(record, title, table, hosts, rates).get(OURS, {})


def print_parts(record, title, table, hosts, rates):
    """The table; {library: {size: part of what the links allow}}, where they carry the median of `rates`."""
    settings = record.settings
    rate = record.links[title] = statistics.median(rates)
    parts = {}
    for library in table:
        column = {size: median(table, library, size) for size in settings.sizes if size >= LARGE}
        parts[library] = {size: of_link(hosts, size, rate, time) for size, time in column.items() if time}
    record.print_table(title, {f"{library}, part of what the links allow": {size: f"{part:.3f}" for size, part in column.items()}
                               for library, column in parts.items()})
    how = "not measured, as asked for" if links.missing() else "as measured by iperf3"
    print(f"link, {how}: {rate:.0f} Mbit/s (rounds: {', '.join(f'{own:.0f}' for own in rates)})")
    return parts


def expect_rate(record, title, parts, target):
    if parts:
        part, size = min((part, size) for size, part in parts.items())
        record.expect(title, "part of the link's rate from 4 MiB up", part, target, note=f"least, at {points.format_size(size)}")


def expect_faster(record, title, table, target, least_size, most_size=64 * points.MIB):
    if record.settings.collective != "allreduce":
        return
    found = least_ratio(table, OURS, least_size, most_size) if OURS in table else None
    if found:
        record.expect(title, f"times as fast as the best peer from {points.format_size(least_size)} up", found[0], target,
                      note=f"least, at {points.format_size(found[1])}")


def links_scenario(record):
    """4 hosts x 1 rank on links of 1 and 2 Gbit/s."""
    hosts = record.settings.host_counts or [4]
    for count in hosts:
        for mbit in record.settings.mbit or [1000, 2000]:
            title = f"{count} hosts x 1 rank, {mbit} Mbit/s"
            table, parts = on_link(record, title, count, 1, mbit)
            expect_rate(record, title, parts, 0.97)
            expect_faster(record, title, table, 1.0, 8)


SHAPES = {2: (2, 1.4), 4: (4, 1.2)}  # hosts: (ranks of each, times as fast as the best peer)


def hosts_scenario(record, shuffled=False):
    """2 hosts x 2 ranks and 4 hosts x 4 ranks on links of 2 Gbit/s."""
    for count in record.settings.host_counts or list(SHAPES):
        per_host, faster = SHAPES.get(count, (2, 1.2))
        for mbit in record.settings.mbit or [2000]:
            title = f"{count} hosts x {per_host} ranks{' shuffled' if shuffled else ''}, {mbit} Mbit/s"
            table, parts = on_link(record, title, count, per_host, mbit, shuffled)
            expect_rate(record, title, parts, 0.92)
            expect_faster(record, title, table, 2.0 if shuffled else faster, LARGE)


def shuffled_scenario(record):
    """The same with the ranks going round the hosts (0, 1, 2, 3, 0, 1, ...)."""
    hosts_scenario(record, shuffled=True)


def latency_scenario(record):
    """8 bytes on links without a limit, against a bare TCP ping-pong and bare recursive doubling in the same rounds."""
    settings = record.settings
    for count in settings.host_counts or [2, 4]:
        title = f"{count} hosts x 1 rank, links not limited"
        pings, doublings = [], []

        def measure_bare():
            messages = 200 if settings.quick else 4000
            pings.append(links.tcp_ping(lab, settings.build, messages))
            if count & (count - 1) == 0:
                doublings.append(links.tcp_doubling(lab, settings.build, messages))

        with Lab(count, mbit=0) as lab:
            table = measure(record, title, lab, placement(count, 1), [8], each_round=measure_bare)
        record.print_table(title)
        looking, sleeping = (statistics.median(ping[how] for ping in pings) for how in (0, 1))
        print(f"bare TCP, one way: {looking:.1f} us when both sides look all the time, {sleeping:.1f} us when they sleep")
        time = median(table, OURS, 8)
        notes = [f"{time:.1f} us; of the sleeping ping-pong {time / sleeping:.2f}"] if time else []
        if doublings:
            bare = statistics.median(doublings)
            print(f"bare TCP, recursive doubling of 8 B: {bare:.1f} us (rounds: {', '.join(f'{own:.1f}' for own in doublings)})")
            notes += [f"of bare recursive doubling {time / bare:.2f}"] if time else []
        if time:
            record.expect(title, "8 B, one-way latencies of bare TCP (looking)", time / looking, 2 * math.log2(count),
                          least=False, note="; ".join(notes))


def compression_scenario(record):
    """fp16 on the wire against float32, 4 hosts x 1 rank."""
    settings = record.settings
    sizes = [size for size in settings.sizes if size >= LARGE]
    for mbit in settings.mbit or [1000]:
        title = f"4 hosts x 1 rank, {mbit} Mbit/s, types on the wire"
        with Lab(4, mbit=mbit) as lab:
            table = measure(record, title, lab, placement(4, 1), sizes, more=["fp16"], mbit=mbit)
        record.print_table(title)
        for size in sizes:
            times = [median(table, library, size) for library in ("treering/fp16", OURS)]
            if all(times):
                record.expect(title, f"time with fp16 over that with float32, {points.format_size(size)}",
                              times[0] / times[1], 0.55, least=False)
