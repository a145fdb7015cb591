# SPDX-License-Identifier: Apache-2.0
"""allreduce-perf end to end: tables, files, refusals, and what it leaves behind when it is interrupted."""
import concurrent.futures
import csv
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PERF = sys.argv.pop(1)
TREERING_PERF = os.path.join(os.path.dirname(PERF), "treering-perf")


def run(*arguments, timeout=120, env=None):
    return subprocess.run([PERF, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          env=dict(os.environ, **(env or {})))


def side_by_side(commands, timeout=240):
    """Two at a time: what begins and ends waits most of the time."""
    def one(command):
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, commands))


def rows(output):
    return [line.split() for line in output.splitlines() if line.strip() and not line.startswith("#")]


def pids(output):
    return [int(line.split()[4]) for line in output.splitlines() if line.startswith("#  Rank")]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def started(*arguments, rows_seen=1, most="1K", **how):
    """An endless run, once its processes have shown so many rows; (process, pids)."""
    process = subprocess.Popen([PERF, "-N", "0", "-b", "1K", "-e", most, *arguments], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, **how)
    seen = []
    for line in process.stdout:
        seen.append(line)
        if len(rows("".join(seen))) == rows_seen:
            return process, sorted(set(pids("".join(seen))))
    raise AssertionError("no row: " + process.stderr.read())


class Tables(unittest.TestCase):
    def test_processes(self):
        done = run("--procs", 3, "-b", 8, "-e", "64K", "-f", 8, "-n", 5)
        self.assertEqual(done.returncode, 0, done.stderr)
        table = rows(done.stdout)
        self.assertEqual([int(row[0]) for row in table], [8, 64, 512, 4096, 32768])
        for row in table:
            self.assertEqual((row[2], row[3], row[4], row[8], row[12]), ("float", "sum", "-1", "0", "0"))
            self.assertGreater(float(row[5]), 0)
            self.assertRegex(row[13], r"^[a-z0-9-]+/(mailbox|staged)/shm/\d+$")
            self.assertEqual(len(row), 16)
            self.assertTrue(all(float(median) > 0 for median in row[14:]), row)  # out of place and in place
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)
        self.assertIn("# Avg bus bandwidth", done.stdout)
        self.assertEqual(len(set(pids(done.stdout))), 3)

    def test_the_transport_is_named(self):
        two_hosts = ("--hosts", "a:2,b:1", "--launcher", "env TREERING_HOSTID={host} TREERING_TIMEOUT=30")
        for where, transports, expected in ((("--procs", 2), "", "shm"), (("--procs", 2), "cma", "cma"),
                                            (("--procs", 2), "tcp", "tcp"), (("-t", 2), "", "in-process"),
                                            (("--procs", 2, "-t", 2), "", "in-process+shm"), (two_hosts, "", "shm+tcp")):
            for name in ("allreduce", "sendrecv"):
                with self.subTest(where=where, transports=transports, name=name), tempfile.TemporaryDirectory() as directory:
                    path = os.path.join(directory, "result.json")
                    done = subprocess.run([TREERING_PERF, name, *map(str, where), "-b", "1M", "-e", "1M", "-n", "2", "-J", path],
                                          capture_output=True, text=True, timeout=120,
                                          env=dict(os.environ, **({"TREERING_TRANSPORTS": transports} if transports else {})))
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    (row,) = rows(done.stdout)
                    algorithm, protocol, transport, channels = row[13].split("/")
                    self.assertEqual(transport, expected)
                    self.assertEqual(protocol, "lanes" if name == "sendrecv" else "staged")
                    with open(path) as file:
                        (result,) = json.load(file)["results"]
                    self.assertEqual([result[key] for key in ("algorithm", "protocol", "transport", "channels")],
                                     [algorithm, protocol, expected, int(channels)])

    def test_registered_buffers_are_direct_where_memory_is_shared(self):
        for transports, expected in (("", "direct/shm"), ("cma", "staged/cma"), ("tcp", "staged/tcp")):
            done = run("--procs", 2, "-b", "1M", "-e", "1M", "-n", 2, "-R", 1,
                       env={"TREERING_TRANSPORTS": transports} if transports else {})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"/{expected}/", rows(done.stdout)[0][13])

    def test_what_is_not_checked_is_not_called_good(self):
        """A narrower type on the wire rounds sums of float32; a copy or a maximum stays as it is."""
        not_checked = "# Out of bounds values : not checked"
        for arguments, expected in (((), not_checked), (("-o", "max"), "# Out of bounds values : 0 OK")):
            done = run("--procs", 2, "-b", "1K", "-e", "1M", "-f", 32, "-n", 2, *arguments, env={"TREERING_WIRE": "fp16"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(expected, done.stdout)
        self.assertIn(not_checked, run("--procs", 2, "-b", 8, "-e", 8, "-n", 2, "-c", 0).stdout)

    def test_threads_in_processes_and_every_type_and_operation(self):
        done = run("--procs", 2, "-t", 2, "-b", "4K", "-e", "4K", "-n", 2, "-d", "all", "-o", "all")
        self.assertEqual(done.returncode, 0, done.stderr)
        table = rows(done.stdout)
        # Integers have 11 operations, floats 5, complex numbers 3, bool 6.
        self.assertEqual(len(table), 6 * 11 + 6 * 5 + 2 * 3 + 6)
        self.assertTrue(all(row[8] == "0" and row[12] == "0" for row in table))
        self.assertEqual(len(set(pids(done.stdout))), 2)

    def test_every_collective(self):
        names = subprocess.run([TREERING_PERF, "nonsense"], capture_output=True, text=True).stderr
        collectives = names.split("is not one of ")[1].strip().split(", ")
        self.assertEqual(len(collectives), 15)
        cases = [(name, words if "-b" in words else [*words, "-b", "64K", "-e", "64K"]) for name in collectives
                 for words in (["-b", 40, "-e", "40K", "-f", 32], ["-d", "all", "-b", 4099, "-e", 4099], ["-t", 2, "-r", 2],
                               ["--stream", "--seed", 9])]
        programs = side_by_side([TREERING_PERF, name, "--procs", "3", "-n", "2", *map(str, words)] for name, words in cases)
        for (name, words), done in zip(cases, programs, strict=True):
            with self.subTest(collective=name, words=words):
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(rows(done.stdout))
                places = {tuple(value == "n/a" for value in row[5:13]) for row in rows(done.stdout)}
                self.assertEqual(places, {(False,) * 4 + (name in ("alltoallv", "sendrecv"),) * 4})
                self.assertIn("# Out of bounds values : 0 OK", done.stdout)

    def test_no_row_is_empty_or_there_twice(self):
        for name in ("allgather", "reduce-scatter", "alltoall", "gather", "scatter", "alltoallv"):
            with self.subTest(collective=name):
                done = subprocess.run([TREERING_PERF, name, "--procs", "4", "-b", "8", "-e", "64", "-f", "2", "-n", "2",
                                       "-d", "double"], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual([row[:2] for row in rows(done.stdout)], [["32", "1"], ["64", "2"]])
                self.assertIn("# Out of bounds values : 0 OK", done.stdout)
        # Past -e, for which the buffers have room.
        done = subprocess.run([TREERING_PERF, "alltoall", "--procs", "4", "-b", "1", "-e", "1", "-n", "2", "-d", "all"],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({row[1] for row in rows(done.stdout)}, {"1"})
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)

    # Blocks of 16 KiB to 3 MiB, from sizes at which the kernel copies them to those at which it no longer pays.
    def test_large_blocks_with_and_without_copies_by_the_kernel(self):
        cases = [(name, transports) for name in ("alltoall", "alltoallv", "allgather", "scatter", "scatterv", "gatherv", "sendrecv")
                 for transports in ("in-process,shared-memory,cma", "^cma")]
        programs = side_by_side(["env", f"TREERING_TRANSPORTS={transports}", "TREERING_ALGO=allgather:ring", TREERING_PERF, name, "--procs",
                                 "3", "-n", "2", "-w", "1", "-b", "49200", "-e", "9M", "-f", "13"] for name, transports in cases)
        for (name, transports), done in zip(cases, programs, strict=True):
            with self.subTest(collective=name, transports=transports):
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len(rows(done.stdout)), 3)
                self.assertIn("# Out of bounds values : 0 OK", done.stdout)

    def test_options_that_change_the_call(self):
        for words in (["-R", 1], ["-R", 2], ["-u", 1], ["-m", 4], ["-z", 1], ["--stream"], ["-T", 30], ["-c", 3],
                      ["-N", 2], ["--stream", "-z", 2]):
            with self.subTest(words=words):
                done = run("--procs", 2, "-b", "64K", "-e", "64K", "-n", 3, *words)
                self.assertEqual(done.returncode, 0, done.stderr)
                table = rows(done.stdout)
                self.assertEqual(len(table), 2 if words[0] == "-N" else 1)
                self.assertEqual((table[0][8], table[0][12]), ("0", "0"))

    def test_without_checks_nothing_is_claimed(self):
        done = run("--procs", 2, "-b", 8, "-e", 8, "-c", 0)
        self.assertEqual(rows(done.stdout)[0][8], "N/A")

    def test_limit_and_statistics(self):
        done = run("--procs", 2, "-b", "1M", "-e", "1M", "-n", 10, "-I", "--limit")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = rows(done.stdout)[0]
        least, most, p99 = map(float, row[9:12])
        self.assertTrue(least <= p99 <= most)
        self.assertGreater(float(row[-2]), 0)
        self.assertTrue(0 < float(row[-1]) < 2, row[-1])

    def test_explain_prints_every_size(self):
        done = run("--procs", 2, "-b", 8, "-e", 512, "-f", 8, "--explain")
        self.assertEqual(done.returncode, 0, done.stderr)
        for size in ("# 8 B float", "# 64 B float", "# 512 B float"):
            self.assertIn(size, done.stdout)
        self.assertGreater(len(done.stdout.splitlines()), 3)


class Files(unittest.TestCase):
    def test_json_and_baseline(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            common = ["--procs", 2, "-b", "64K", "-e", "256K", "-f", 2, "-n", 20]
            self.assertEqual(run(*common, "-J", path).returncode, 0)
            with open(path) as file:
                document = json.load(file)
            self.assertEqual(document["version"], 3)
            self.assertEqual([row["size"] for row in document["results"]], [65536, 131072, 262144])
            self.assertEqual(document["results"][0]["out_of_place"]["nwrong"], 0)
            self.assertEqual(len(document["config"]["devices"]), 2)

            same = run(*common, "--baseline", path, "--tolerance", 100000)
            self.assertEqual(same.returncode, 0, same.stderr)
            self.assertIn("6 times compared, 0 slower", same.stdout)

            # A mean of one preempted call is passed over.
            document["results"][0]["in_place"]["time"] = 1e-6
            document["results"][1]["in_place"]["median"] = 1e-6
            with open(path, "w") as file:
                json.dump(document, file)
            slower = run(*common, "--baseline", path, "--tolerance", 100000)
            self.assertEqual(slower.returncode, 3, slower.stderr)
            self.assertIn("SLOWER than the baseline: 128 KiB float sum in-place: median ", slower.stdout)
            self.assertEqual(slower.stdout.count("SLOWER"), 1)
            self.assertNotIn("means", slower.stdout)

            for row in document["results"]:  # a file of an earlier version
                for place in ("out_of_place", "in_place"):
                    del row[place]["median"]
            with open(path, "w") as file:
                json.dump(document, file)
            old = run(*common, "--baseline", path, "--tolerance", 100000)
            self.assertEqual(old.returncode, 3, old.stderr)
            self.assertIn("64 KiB float sum in-place: mean ", old.stdout)
            self.assertIn("6 times are compared by their means, which one slow call changes: the file has no medians", old.stdout)

            other = run("--procs", 3, "-b", 8, "-e", 8, "--baseline", path)
            self.assertEqual(other.returncode, 2)
            self.assertIn("2 ranks, this run has 3", other.stderr)
            for program, words, named in (
                    ([TREERING_PERF, "alltoall"], [], "made with the collective allreduce, this run is of alltoall"),
                    ([PERF], ["-o", "max"], "has float; sum; 64 KiB to 256 KiB, this run float; max; 64 KiB to 256 KiB"),
                    ([PERF], ["-d", "half"], "this run half; sum; 64 KiB to 256 KiB; give -d, -o, -b")):
                other = subprocess.run([*program, *map(str, common), "--baseline", path, *words], capture_output=True,
                                       text=True, timeout=120)
                self.assertEqual((other.returncode, other.stdout), (2, ""), other.stderr)
                self.assertIn(f"error: --baseline {path}: ", other.stderr)
                self.assertIn(named, other.stderr)

    def test_medians_on_a_stream_are_those_of_calls_that_are_waited_for(self):
        for words, known in ((["--stream"], False), (["--stream", "-z", 2], True), (["--stream", "-I"], True)):
            with self.subTest(words=words):
                done = run("--procs", 2, "-b", 1024, "-e", 1024, *words)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual([median != "n/a" for median in rows(done.stdout)[0][-2:]], [known] * 2)

    def test_csv(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.csv")
            with open(path, "w") as file:
                file.write("of an earlier run\n" * 100)
            done = run("--procs", 2, "-b", "1K", "-e", "4K", "-f", 2, "-n", 2, "--csv", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, newline="") as file:
                lines = list(csv.DictReader(file))
        self.assertEqual([(line["collective"], line["ranks"], line["size"]) for line in lines],
                         [("allreduce", "2", size) for size in ("1024", "2048", "4096")])
        table = rows(done.stdout)
        for line, row in zip(lines, table, strict=True):
            self.assertAlmostEqual(float(line["in_place_median"]), float(row[15]), delta=0.01)
            self.assertAlmostEqual(float(line["out_of_place_time"]), float(row[5]), delta=0.01)
            self.assertEqual(line["out_of_place_nwrong"], "0")

    def test_csv_on_standard_output_is_alone_there(self):
        done = run("--procs", 2, "-b", "1K", "-e", "2K", "-f", 2, "-n", 2, "--csv", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual((len(lines), lines[0][:17]), (3, "collective,ranks,"))
        self.assertEqual(len(rows(done.stderr)), 2)
        self.assertIn("# Out of bounds values : 0 OK", done.stderr)

    def test_files_that_cannot_be(self):
        for words in (["--csv", "/nonexistent/x.csv"], ["--csv", "/dev/full"]):
            done = run("--procs", 2, "-b", 8, "-e", 8, *words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"error: --csv {words[1]}: ", done.stderr)
        self.assertEqual(run("--procs", 2, "--baseline", "/nonexistent").returncode, 2)
        done = run("--procs", 2, "-J", "/nonexistent/x.json")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nonexistent/x.json", done.stderr)


class Refusals(unittest.TestCase):
    def test_one_rank(self):
        self.assertEqual(run().returncode, 2)
        done = run("--allow-one-rank", "-b", 8, "-e", 8)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_more_memory_than_there_is(self):
        done = run("--procs", 1024, "-b", 8, "-e", "64G")
        self.assertEqual(done.returncode, 2)
        self.assertIn("GiB", done.stderr)

    # In a build without CUDA too.
    def test_gpu_memory_without_a_gpu(self):
        done = run("--procs", 2, "--memory", "gpu", env={"TREERING_CUDA_DRIVER": "/nonexistent/driver.so"})
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--memory gpu: no GPU can be used: no CUDA driver: /nonexistent/driver.so", done.stderr)

    def test_unknown_algorithm_is_named(self):
        done = run("--procs", 2, "-b", 8, "-e", 8, env={"TREERING_ALGO": "bogus"})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Aerror: rank \d: creating the communicator: .*'bogus'")
        self.assertEqual(done.stderr.count("error: "), 1, done.stderr)  # that its process ended, too, is no news

    def test_what_all_ranks_say_alike_is_told_once(self):
        for words in (["-t", 4], ["--procs", 4]):
            done = run(*words, "-b", 8, "-e", 8, env={"TREERING_TRANSPORTS": "bogus"})
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr.count("'bogus' is unknown"), 1, done.stderr)

    def test_a_step_past_the_last_size_is_told(self):
        common = ["-t", 2, "-n", 1, "-b", 8, "-e", "64K"]
        note = "# one size alone: the step (-i) goes past -e 64 KiB; -f 2 doubles"
        self.assertIn(note, run(*common).stdout)
        self.assertNotIn(note, run(*common, "-f", 2).stdout)


class Terminal(unittest.TestCase):
    def test_a_line_tells_the_progress_and_is_erased(self):
        try:
            master, terminal = pty.openpty()
        except OSError as reason:
            self.skipTest(f"no terminal can be made here (is /dev/pts mounted?): {reason}")
        with subprocess.Popen([PERF, "--procs", "2", "-N", "0", "-b", "1K", "-e", "1K"], stdout=subprocess.DEVNULL,
                              stderr=terminal, stdin=subprocess.DEVNULL) as process:
            os.close(terminal)
            seen = b""
            while not re.search(rb"row 1 of 1: 1 KiB float, \d+ s", seen):
                self.assertIsNone(process.poll(), seen)
                self.assertTrue(select.select([master], [], [], 60)[0], seen)
                seen += os.read(master, 4096)
            process.send_signal(signal.SIGINT)
            while True:
                try:
                    piece = os.read(master, 4096)
                except OSError:  # the terminal's last user is gone
                    break
                seen += piece
        os.close(master)
        self.assertEqual(process.returncode, 0, seen)
        self.assertGreater(seen.rfind(b"\r\033[K"), seen.rfind(b"row 1 of 1"), seen[-300:])


class Endings(unittest.TestCase):
    def expect_gone(self, process, ranks, within_s=15):
        deadline = time.time() + within_s
        try:
            process.communicate(timeout=within_s)
            while any(map(alive, ranks)) and time.time() < deadline:
                time.sleep(0.05)
            self.assertEqual([pid for pid in ranks if alive(pid)], [])
        finally:
            if process.poll() is None:
                process.kill()

    def test_signals_leave_no_process(self):
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number=number):
                process, ranks = started("--procs", "3")
                self.assertEqual(len(ranks), 3)
                process.send_signal(number)
                self.expect_gone(process, ranks)
                self.assertEqual(process.returncode, -9 if number == signal.SIGKILL else 128 + number)

    def expect_summary(self, process, ranks, path):
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("# Out of bounds values : 0 OK", output)
        self.assertIn("# Avg bus bandwidth", output)
        with open(path) as file:
            self.assertEqual([row["size"] for row in json.load(file)["results"]], [1024])
        self.expect_gone(process, ranks)

    def test_an_interrupt_of_an_endless_run_brings_its_summary_and_its_files(self):
        # The launcher alone gets it, or all processes at once, as a terminal does it for Ctrl-C.
        for send in (os.kill, os.killpg):
            for where in (["--procs", "3"], ["--hosts", "a:2,b:1", "--launcher", "env TEST_HOST={host}"]):
                with self.subTest(send=send.__name__, where=where), tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "run.json")
                    process, ranks = started(*where, "-J", path, start_new_session=True)
                    send(process.pid, signal.SIGINT)
                    self.expect_summary(process, ranks, path)

    def test_the_summary_of_an_interrupted_table_is_that_of_the_last_whole_one(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            # Two of three rows take long: the signal comes while the second row of the second table is measured.
            process, _ = started("--procs", "2", "-i", "16M", "-n", "2", "-J", path, rows_seen=4, most="33M")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
            with open(path) as file:
                self.assertEqual([row["size"] for row in json.load(file)["results"]], [1024, (16 << 20) + 1024, (32 << 20) + 1024])

    def test_dead_rank_ends_the_run_and_is_named(self):
        process, ranks = started("--procs", "3")
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertIn("rank 1", errors)
        self.assertIn("signal 9", errors)
        self.expect_gone(process, ranks)


if __name__ == "__main__":
    unittest.main()
