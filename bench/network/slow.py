# SPDX-License-Identifier: Apache-2.0
"""The scenario in which something is slower than the rest: a host, a NIC, a stream."""
import re

from comparison.libraries import MeasurementFailed
from netlab import Lab

from . import links
from .sizes import LARGE, OURS, expect_faster, expect_rate, measure, placement, print_parts

SLOWER = 4  # times
STREAMS = 4  # of Treering, where one is slow


def slow_scenario(record):
    """Hosts of one rank with one host, one NIC of two, or one stream four times slower than the rest; and two equal NICs."""
    for mbit in record.settings.mbit or [1000]:
        slow_host(record, mbit)
        for hosts in (4, 2):
            for second in (mbit // SLOWER, mbit):
                two_nics(record, hosts, mbit, second)
        if "treering" in record.settings.libraries:
            slow_stream(record, mbit)


def large(record):
    return [size for size in record.settings.sizes if size >= LARGE]


def judge(record, title, table, rates, hosts=4):
    parts = print_parts(record, title, table, hosts, rates)
    expect_rate(record, title, parts.get(OURS, {}), 0.97)
    expect_faster(record, title, table, 1.0, LARGE)


def slow_host(record, mbit):
    """The slow host's link is what the ring waits for."""
    title = f"4 hosts x 1 rank, {mbit} Mbit/s, one host {mbit // SLOWER}"
    rates = []
    with Lab(4, mbit=mbit, host_mbit={3: mbit // SLOWER}) as lab:
        table = measure(record, title, lab, placement(4, 1), large(record), mbit=mbit // SLOWER,
                        each_round=lambda: rates.append(links.rate_of_link(lab, 0, 3, mbit // SLOWER)))
    judge(record, title, table, rates)


def two_nics(record, hosts, mbit, second):
    """Both NICs together are what a host has."""
    title = f"{hosts} hosts x 1 rank, two NICs, {mbit} and {second} Mbit/s"
    rates = []
    with Lab(hosts, mbit=mbit, nics=2, nic_mbit={(host, 1): second for host in range(hosts)}) as lab:
        def measure_links():
            rates.append(sum(links.rate_of_link(lab, 0, 1, nominal, nic=nic)
                             for nic, nominal in enumerate((mbit, second))))

        table = measure(record, title, lab, placement(hosts, 1), large(record), mbit=mbit, each_round=measure_links)
    judge(record, title, table, rates, hosts)


def slow_stream(record, mbit):
    """One of Treering's TCP streams from host 0 to the next gets a part of the link; the others may use all that is left. gloo
    and Open MPI have one stream a pair: for them that is a slow link."""
    title = f"4 hosts x 1 rank, {mbit} Mbit/s, one of {STREAMS} streams limited to {mbit // SLOWER}"
    settings, rates = record.settings, []
    chosen, settings.libraries = settings.libraries, ["treering"]
    settings.variables = {"TREERING_TCP_STREAMS": str(STREAMS)}
    try:
        with Lab(4, mbit=mbit) as lab:
            def limit(sessions):
                for session in sessions.sessions:
                    sessions.ask(session, f"point {LARGE} 10")  # opens the streams
                    limit_stream(lab, 0, mbit)

            # After the limit was set, so that the figure is also the proof that other streams do not feel it.
            table = measure(record, title, lab, placement(4, 1), large(record), mbit=mbit, prepare=limit,
                            each_round=lambda: rates.append(links.rate_of_link(lab, 0, 1, mbit)))
    finally:
        settings.libraries, settings.variables = chosen, {}
    judge(record, title, table, rates)


def limit_stream(lab, host, mbit):
    """The stream of `host` that has carried most gets mbit / SLOWER, the whole host still mbit."""
    listed = lab.run_all([(host, ["ss", "--tcp", "--info", "--numeric", "--no-header", "--oneline"])], timeout=20)[0].output
    streams = []
    for line in listed.splitlines():
        local, sent = line.split()[3], re.search(r"bytes_sent:(\d+)", line)
        if sent:
            streams.append((int(sent.group(1)), int(local.rsplit(":", 1)[1]), "[" in local))
    if not streams or max(streams)[0] < LARGE:
        raise MeasurementFailed(f"no stream that has carried {LARGE} bytes: {listed[:300]}")
    _, port, ipv6 = max(streams)
    kind, at = ("ipv6", "ip6") if ipv6 else ("ip", "ip")
    rate, burst = f"{mbit * 1514 // 1448}mbit", "80k"
    for command in ("qdisc replace dev eth0 root handle 2: htb default 20",
                    f"class add dev eth0 parent 2: classid 2:1 htb rate {rate} burst {burst} cburst {burst}",
                    f"class add dev eth0 parent 2:1 classid 2:10 htb rate {mbit // SLOWER}mbit burst {burst} cburst {burst}",
                    f"class add dev eth0 parent 2:1 classid 2:20 htb rate 1mbit ceil {rate} burst {burst} cburst {burst}",
                    f"filter add dev eth0 parent 2: protocol {kind} u32 match {at} sport {port} 0xffff flowid 2:10"):
        done = lab.run_all([(host, ["tc", *command.split()])], timeout=20)[0]
        if done.status != 0:
            raise MeasurementFailed(f"tc {command}: {done.output.strip()}")

