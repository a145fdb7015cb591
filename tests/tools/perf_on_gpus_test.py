# SPDX-License-Identifier: Apache-2.0
"""allreduce-perf --memory gpu end to end, on the CUDA driver without a GPU.

usage: perf_on_gpus_test.py ALLREDUCE_PERF FAKE_CUDA_DRIVER
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PERF, DRIVER = sys.argv[1:]
TREERING_PERF = os.path.join(os.path.dirname(PERF), "treering-perf")
SMALL = ["-b", "8", "-e", "64K", "-f", "16", "-n", "3"]


# Two blocks for each rank: threads of a CPU stand for those of a GPU.
def run(*command, gpus=2, **variables):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "OMPI", "SLURM"))}
    environment = kept | {"TREERING_CUDA_DRIVER": DRIVER, "TREERING_DEVICE_BLOCKS": "2", "TREERING_TIMEOUT": "60",
                          "FAKE_CUDA_DEVICES": str(gpus)} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, stdin=subprocess.DEVNULL)


def perf(*words, **variables):
    return run(PERF, "--memory", "gpu", *map(str, words), **variables)


def rows(output):
    return [line.split() for line in output.splitlines() if line.strip() and not line.startswith("#")]


def places(output):
    """(pid, number of the GPU, its name) of each rank, from the header."""
    lines = [line.split() for line in output.splitlines() if line.startswith("#  Rank")]
    return [(int(line[4]), int(line[8]), " ".join(line[10:])) for line in lines]


class Case(unittest.TestCase):
    def expect_table(self, done, sizes=(8, 128, 2048, 32768)):
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        table = rows(done.stdout)
        self.assertEqual([int(row[0]) for row in table], list(sizes))
        for row in table:
            self.assertEqual((row[8], row[12]), ("0", "0"), row)
            self.assertTrue(float(row[5]) > 0 and float(row[9]) > 0, row)
        self.assertIn("# Out of bounds values : 0 OK", done.stdout)
        return table


class Ranks(Case):
    def test_of_one_process_take_the_gpus_in_turn(self):
        for words in (["-g", 3], ["-t", 3]):
            done = perf(*words, *SMALL)
            table = self.expect_table(done)
            self.assertEqual({row[13].split("/")[1] for row in table} - {"ll", "ll128", "simple"}, set())
            self.assertEqual([place[1:] for place in places(done.stdout)],
                             [(0, "Fake GPU 0"), (1, "Fake GPU 1"), (0, "Fake GPU 0")])
            self.assertEqual(len({pid for pid, *_ in places(done.stdout)}), 1)
            self.assertIn("GPU memory (trDeviceMemAlloc)", done.stdout)

    def test_share_one_gpu(self):
        done = perf("-g", 2, *SMALL, gpus=1)
        self.expect_table(done)
        self.assertEqual([gpu for _, gpu, _ in places(done.stdout)], [0, 0])

    def test_of_two_processes(self):
        for gpus in (1, 2):  # one: through memory of the host
            done = perf("--procs", 2, *SMALL, gpus=gpus)
            self.expect_table(done)
            self.assertEqual([gpu for _, gpu, _ in places(done.stdout)], [0, gpus - 1])
            self.assertEqual(len({pid for pid, *_ in places(done.stdout)}), 2)
        done = perf("--procs", 2, "-t", 1, "-g", 2, *SMALL)
        self.expect_table(done)
        self.assertEqual([gpu for _, gpu, _ in places(done.stdout)], [0, 1, 0, 1])

    def test_of_a_launcher(self):
        launchers = [[PERF, "--hosts", "a:2,b:1", "--launcher", "env TEST_HOST={host}"]]
        if shutil.which("mpirun.openmpi"):
            launchers.append(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", PERF])
        for launcher in launchers:
            with self.subTest(launcher=launcher[0]):
                done = run(*launcher, "--memory", "gpu", "-G", "2", *SMALL)
                self.expect_table(done)
                self.assertEqual([gpu for _, gpu, _ in places(done.stdout)], [0, 1, 0])


class Calls(Case):
    def test_every_collective(self):
        names = subprocess.run([TREERING_PERF, "nonsense"], capture_output=True, text=True).stderr
        for name in names.split("is not one of ")[1].strip().split(", "):
            for words in (["-d", "all", "-b", "4099", "-e", "4099"], ["-b", "256K", "-e", "256K", "-G", "2", "-u", "1"]):
                with self.subTest(collective=name, words=words):
                    done = run(TREERING_PERF, name, "--memory", "gpu", "-g", "3", "-r", "1", "-n", "2", *words)
                    self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                    self.assertIn("# Out of bounds values : 0 OK", done.stdout)
                    wrong = {row[8] for row in rows(done.stdout)} | {row[12] for row in rows(done.stdout)}
                    self.assertLessEqual(wrong, {"0", "n/a"})

    # 5 pieces of what is copied to be filled and verified, the last of which is not whole.
    def test_more_than_a_piece(self):
        self.expect_table(perf("-g", 2, "-b", 70000012, "-e", 70000012, "-n", 1, "-d", "uint8"), [70000012])

    def test_options_that_change_the_call(self):
        for words in (["-u", 1], ["-m", 4], ["-z", 1], ["-z", 2], ["-T", 30], ["-c", 3], ["--stream"], ["-a", 3],
                      ["-G", 1, "-w", 0], ["-G", 2, "-m", 3], ["-G", 2, "-z", 1], ["-G", 2, "-z", 2], ["-G", 2, "-c", 2]):
            with self.subTest(words=words):
                self.expect_table(perf("-g", 2, *SMALL, *words))
        self.assertEqual(len(rows(perf("-g", 2, *SMALL, "-N", 2, "-G", 1).stdout)), 8)
        self.assertEqual(rows(perf("-g", 2, *SMALL, "-c", 0).stdout)[0][8], "N/A")

    def test_explain_names_the_kernel_or_what_the_host_does(self):
        done = perf("-g", 2, *SMALL, "--explain")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall(r"in memory of GPUs: 2 ranks", done.stdout)), 4, done.stdout)
        self.assertRegex(done.stdout, r"(?m)^\* one-shot +ll +1 +1 +\d+\.\d\d$")
        done = perf("--procs", 2, *SMALL, "--explain", gpus=1)
        self.assertNotIn("in memory of GPUs", done.stdout)
        self.assertEqual(done.stdout.count("chosen: "), 4, done.stdout)


class Files(Case):
    def test_json_and_baseline(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            done = perf("-g", 2, *SMALL, "-I", "-G", 4, "-J", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path) as file:
                document = json.load(file)
            config = document["config"]
            self.assertEqual((config["memory"], config["ngpus"], config["graph"]), ("gpu", 2, 4))
            self.assertEqual([device["device_info"] for device in config["devices"]], ["Fake GPU 0", "Fake GPU 1"])
            first = document["results"][0]
            self.assertEqual((first["out_of_place"]["nwrong"], first["in_place"]["nwrong"]), (0, 0))
            self.assertEqual(len(first["in_place_per_iter"]["times_us"]), 4)
            # All are times of a call: the mean of two ranks, and the average of the slower one of each launch.
            for place in ("out_of_place", "in_place"):
                mean, slower = first[place]["time"], first[place + "_per_iter"]["avg_us"]
                self.assertTrue(0.9 * mean <= slower <= 2.2 * mean, (mean, slower))

            compared = ["--baseline", path, "--tolerance", "1000000"]
            same = perf("-g", 2, *SMALL, "-G", 4, *compared)
            self.assertEqual(same.returncode, 0, same.stderr)
            self.assertIn("8 times compared, 0 slower", same.stdout)
            other = run(PERF, "--procs", "2", *SMALL, *compared)
            self.assertEqual((other.returncode, other.stdout), (2, ""))
            self.assertIn("made with --memory gpu, this run has --memory host", other.stderr)


class Refusals(Case):
    def expect_refused(self, done, *named):
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        for words in named:
            self.assertIn(words, done.stderr)

    def test_no_gpu_is_said_with_the_reason(self):
        where = "error: --memory gpu: no GPU can be used: "
        self.expect_refused(perf("-g", 2, TREERING_CUDA_DRIVER="/nonexistent/driver.so"),
                            where + "no CUDA driver: /nonexistent/driver.so")
        self.expect_refused(perf("--procs", 2, TREERING_CUDA_DRIVER="libc.so.6"), "libc.so.6 has no cuInit")
        self.expect_refused(perf("--procs", 2, gpus=0), where + "the CUDA driver sees none")
        self.expect_refused(perf("--procs", 2, TREERING_DEVICE_LIBRARY="/nonexistent/library.so"), where,
                            "without CUDA support")

    def test_buffers_that_a_gpu_has_no_room_for(self):
        self.expect_refused(perf("-g", 2, "-b", 8, "-e", "128M", gpus=1), "2 rank(s) on GPU 0 need 0.5 GiB, it has 0.4 GiB")
        self.expect_refused(perf("-g", 2, "-b", 8, "-e", "1G"), "1 rank(s) on GPU 0 need 2.0 GiB, it has 0.4 GiB")

    def test_a_rank_that_fails_is_named(self):
        done = perf("-g", 2, *SMALL, TREERING_ALGO="bogus")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("unknown algorithm 'bogus'", done.stderr)
        self.assertRegex(done.stderr, r"^error: rank [01]: ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
