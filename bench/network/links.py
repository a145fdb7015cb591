# SPDX-License-Identifier: Apache-2.0
"""What the links of a Lab carry and how fast a message crosses them, without any library of collectives."""
import json
import os
import shutil
import subprocess
import time

from comparison.libraries import MeasurementFailed, end


def missing():
    return None if shutil.which("iperf3") else "iperf3 not found (Debian package iperf3)"


def rate_of_link(lab, source, target, nominal_mbit, seconds=2, nic=0):
    """Mbit/s that one TCP connection carries from host `source` to host `target` after its first second, by iperf3; what was
    asked for where that is not installed."""
    if missing():
        return nominal_mbit
    address = lab.address(target, nic)
    server = lab.popen(target, ["iperf3", "--server", "--bind", address], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
    try:
        for _ in range(20):
            client = lab.run_all([(source, ["iperf3", "--client", address, "--time", str(seconds), "--omit", "1", "--json"])],
                                 timeout=seconds + 20)[0]
            received = json.loads(client.output or "{}").get("end", {}).get("sum_received")
            if client.status == 0 and received:
                return received["bits_per_second"] / 1e6
            time.sleep(0.1)  # the server does not listen yet
    finally:
        end(server)
    raise MeasurementFailed(f"iperf3 from host {source} to {target}: {client.output[-300:]}")


def tcp_ping(lab, build, count):
    """One-way latency in us between hosts 0 and 1: (both sides looking all the time, both sleeping in recv())."""
    program = os.path.join(build, "bench", "network", "tcp_ping")
    if not os.path.exists(program):
        raise MeasurementFailed(f"{program} is not built")
    server = lab.popen(1, [program, "listen", lab.address(1)], stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().strip()
        client = lab.run_all([(0, [program, "connect", lab.address(1), port, str(count)])], timeout=60)[0]
        if client.status != 0:
            raise MeasurementFailed(f"tcp_ping: {client.output.strip()}")
        looking, sleeping = client.output.split()
        return float(looking), float(sleeping)
    finally:
        end(server)
        server.stdout.close()


def tcp_doubling(lab, build, count):
    """us of recursive doubling of 8 bytes over bare connections between all hosts, which are a power of two."""
    program = os.path.join(build, "bench", "network", "tcp_doubling")
    if not os.path.exists(program):
        raise MeasurementFailed(f"{program} is not built")
    addresses = ",".join(lab.address(host) for host in range(lab.hosts))
    results = lab.run_all([(host, [program, str(host), addresses, "7777", str(count)]) for host in range(lab.hosts)], timeout=60)
    for result in results:
        if result.status != 0:
            raise MeasurementFailed(f"tcp_doubling on host {result.host}: {result.output.strip()}")
    return float(results[0].output)
