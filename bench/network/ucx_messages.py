# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes of this machine by UCX's TCP over the loopback interface: Treering over UCX and ucx_perftest.

Each round runs both, in turn. 8 B: half of a ping-pong, the median of a round's calls. 1 MiB: the mean time of a message of many that follow
one another.
"""
import os
import re
import shutil
import subprocess

from network.rdma_allreduce import Failed

LATENCY, RATE = 8, 1 << 20
DEADLINE = 120
PORT = 13400
TRANSPORT = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
BOUNDS = {LATENCY: 1.25, RATE: 0.9}


def pair(what, first, second):
    """Starts both, each with its command and variables; returns what the second one prints."""
    environments = [{**os.environ, **TRANSPORT, **variables} for _, variables in (first, second)]
    server = subprocess.Popen(first[0], env=environments[0], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        client = subprocess.run(second[0], env=environments[1], capture_output=True, text=True, timeout=DEADLINE)
        errors = server.communicate(timeout=DEADLINE)[1]
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{what}: not over within {DEADLINE} s") from late
    finally:
        server.kill()
        server.wait()
    if client.returncode != 0 or server.returncode != 0:
        raise Failed(f"{what}: {client.stdout}{client.stderr}{errors}")
    return client.stdout


def ours(build, size, port):
    mode, rounds = ("latency", 5000) if size == LATENCY else ("rate", 50)
    command = [os.path.join(build, "bench/network/verbs_ping"), mode, str(size), str(rounds), "malloc"]
    ranks = [{"TREERING_TRANSPORTS": "ucx", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "RANK": str(rank)} for rank in (1, 0)]
    times = sorted(float(line) for line in pair(f"verbs_ping {mode} {size}", (command, ranks[0]), (command, ranks[1])).split())
    return times[len(times) // 2] if size == LATENCY else sum(times) / len(times)


def perftest(size, port):
    test, iterations = ("ucp_am_lat", 5000) if size == LATENCY else ("ucp_am_bw", 500)
    command = ["ucx_perftest", "-p", str(port), "-t", test, "-s", str(size), "-n", str(iterations), "-w", "100", "-e", "-f"]
    # The client tries again until the server listens.
    client = ["bash", "-c", 'for i in $(seq 60); do timeout 100 "$@" && exit 0; sleep 0.1; done; exit 1', "-", *command, "127.0.0.1"]
    output = pair(f"ucx_perftest {test} {size}", (command, {}), (client, {}))
    row = re.search(rf"^ *{iterations} +([\d.]+) +([\d.]+) +([\d.]+)", output, re.MULTILINE)
    if not row:
        raise Failed(f"ucx_perftest {test}: no figure in: {output}")
    return float(row[1] if size == LATENCY else row[3])  # the median; the mean of all


def measure(options):
    if not shutil.which("ucx_perftest"):
        raise Failed("ucx_perftest not found (list \"rdma\" of tools/packages)")
    times = {}
    for number in range(options.rounds):
        for size in BOUNDS:
            for name, run in (("treering (ucx)", lambda port, size=size: ours(options.build, size, port)),
                              ("ucx_perftest", lambda port, size=size: perftest(size, port))):
                us = run(PORT + number % 100)
                times.setdefault((size, name), []).append(us)
    for size, bound in BOUNDS.items():
        own, peer = (sorted(times[size, name]) for name in ("treering (ucx)", "ucx_perftest"))
        compared = [(values[0], values[len(values) // 2]) for values in (own, peer)]
        ratios = [mine / theirs if size == LATENCY else theirs / mine for mine, theirs in zip(*compared)]
        good = ratios[0] <= bound if size == LATENCY else ratios[0] >= bound
        print(f"{size:>8} B: treering (ucx) {compared[0][0]:.2f} us, ucx_perftest {compared[1][0]:.2f} us, "
              f"{'time' if size == LATENCY else 'rate'} {ratios[0]:.2f} of it, medians of the rounds {ratios[1]:.2f} "
              f"({'at most' if size == LATENCY else 'at least'} {bound}){'' if good else '  MISSED'}")
