# SPDX-License-Identifier: Apache-2.0
"""How the backend is found, compiled and kept."""
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import torch

import treering
from treering.torch import _build

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from processes import DEADLINE, clean_environment  # noqa: E402

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "pyproject.toml")
ALONE = """
    import sys
    import torch
    assert not any(name.partition(".")[0] == "treering" for name in sys.modules), "import torch brings treering"
    import torch.distributed as dist
    dist.init_process_group("treering", init_method="file://" + sys.argv[1], rank=0, world_size=1)
    x = torch.ones(3)
    dist.all_reduce(x)
    print(dist.get_backend(), x.tolist())
    dist.destroy_process_group()
"""
BUILD = ("-m", "treering.torch", "build")


def python(*arguments, **variables):
    return subprocess.run([sys.executable, *arguments], env=clean_environment(**variables), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=DEADLINE * 3)


class Found(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_by_the_entry_point(self):
        """As after an installation, which writes this file from pyproject.toml."""
        with open(PROJECT, encoding="utf-8") as file:
            _, _, rest = file.read().partition('[project.entry-points."torch.distributed.backends"]\n')
        name, _, value = rest.splitlines()[0].partition(" = ")
        about = os.path.join(self.folder.name, "treering-0.dist-info")
        os.mkdir(about)
        with open(os.path.join(about, "METADATA"), "w", encoding="utf-8") as file:
            file.write("Metadata-Version: 2.1\nName: treering\nVersion: 0\n")
        with open(os.path.join(about, "entry_points.txt"), "w", encoding="utf-8") as file:
            file.write(f"[torch.distributed.backends]\n{name} = {value.strip(chr(34))}\n")
        program = os.path.join(self.folder.name, "program.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(ALONE))
        path = os.pathsep.join([self.folder.name, os.path.dirname(os.path.dirname(treering.__file__))])
        done = python(program, os.path.join(self.folder.name, "store"), PYTHONPATH=path)
        self.assertEqual((done.returncode, done.stdout), (0, "treering [1.0, 1.0, 1.0]\n"), done.stderr)

    def test_import_treering_brings_no_torch(self):
        done = python("-c", "import sys, treering; print('torch' in sys.modules)")
        self.assertEqual(done.stdout, "False\n", done.stderr)

    def test_options_are_refused(self):
        text = ("import torch.distributed as dist, treering.torch\n"
                f"dist.init_process_group('treering', init_method='file://{self.folder.name}/store', rank=0, world_size=1,"
                " pg_options=7)")
        done = python("-c", text)
        self.assertIn("pg_options is 7; the treering backend takes None", done.stderr)


class Built(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def compiler(self, text):
        """A program in the compiler's place."""
        path = os.path.join(self.folder.name, "compiler")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        return path

    def refused(self, words, **variables):
        done = python(*BUILD, **{"XDG_CACHE_HOME": self.folder.name, **variables})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_no_compiler(self):
        self.refused("there is no C++ compiler /no/such/compiler: install one (on Debian: apt install g++), or name it in CXX",
                     CXX="/no/such/compiler")

    def test_a_compiler_that_fails(self):
        self.refused("failed:\nas the test wants it", CXX=self.compiler("echo as the test wants it >&2; exit 1\n"))

    def test_no_place(self):
        self.refused("set XDG_CACHE_HOME", XDG_CACHE_HOME="/proc/no/such/folder")

    def test_a_damaged_file(self):
        compiler = self.compiler('while [ "$1" != -o ]; do shift; done; echo damaged >"$2"\n')
        self.refused("and it is compiled again", CXX=compiler)

    def test_two_at_a_time(self):
        """One compiles, the other waits for it."""
        log = os.path.join(self.folder.name, "log")
        compiler = self.compiler(f'echo run >>"{log}"; while [ "$1" != -o ]; do shift; done; cp "{_build.build()}" "$2"\n')
        environment = clean_environment(XDG_CACHE_HOME=self.folder.name, CXX=compiler)
        both = [subprocess.Popen([sys.executable, *BUILD], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        printed = [process.communicate(timeout=DEADLINE * 3)[0].strip() for process in both]
        self.assertEqual([process.returncode for process in both], [0, 0])
        self.assertEqual(printed[0], printed[1])
        with open(log, encoding="utf-8") as file:
            self.assertEqual(file.read(), "run\n")
        # And once more without a compiler: it is there.
        self.assertTrue(os.path.exists(printed[0]))

    def test_what_the_name_depends_on(self):
        key = _build.key()
        self.assertTrue(key.startswith(torch.__version__ + "-"))
        self.assertEqual(key, _build.key())
        version, torch.__version__ = torch.__version__, "2.99.0"
        try:
            self.assertNotEqual(key, _build.key())
        finally:
            torch.__version__ = version
        other = os.path.join(self.folder.name, "csrc")
        shutil.copytree(_build.FOLDER, other)
        with open(os.path.join(other, "work.h"), "a", encoding="utf-8") as file:
            file.write("// changed\n")
        folder, _build.FOLDER = _build.FOLDER, other
        try:
            self.assertNotEqual(key, _build.key())
        finally:
            _build.FOLDER = folder


if __name__ == "__main__":
    unittest.main()
