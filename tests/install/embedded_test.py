#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the library inside of other projects, and statically, and runs a program that uses it.

usage: embedded_test.py SOURCE_DIR

The build trees lie beside the suite's own, where the compiler's cache has the objects already.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv[1])
HERE = SOURCE / "tests" / "install"
CACHE = {"CCACHE_BASEDIR": str(SOURCE), "CCACHE_NOHASHDIR": "1"}
FETCHED = """cmake_minimum_required(VERSION 3.18)
project(consumer C)
include(FetchContent)
FetchContent_Declare(treering SOURCE_DIR {source} SOURCE_SUBDIR packaging/fetch)
FetchContent_MakeAvailable(treering)
add_executable(consumer {consumer})
target_link_libraries(consumer PRIVATE treering::treering)
"""
SUBPROJECT = """project('consumer', 'c')
executable('consumer', 'consumer.c', dependencies: dependency('treering'))
"""


def run(*command, **variables):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=250,
                            env={**os.environ, **CACHE, **variables})
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
    return result.stdout


class Embedded(unittest.TestCase):
    def setUp(self):
        for program in ("ccache", "cmake", "pkg-config"):
            if shutil.which(program) is None:
                self.skipTest(f"{program} was not found: tools/install-packages build test")
        self.work = Path(tempfile.mkdtemp(prefix="build-embedded-", dir=SOURCE))
        self.addCleanup(shutil.rmtree, self.work)

    def tree_beside(self):
        tree = Path(tempfile.mkdtemp(prefix="build-embedded-", dir=SOURCE))
        self.addCleanup(shutil.rmtree, tree)
        return tree

    def test_static_library(self):
        tree = self.tree_beside()
        run("meson", "setup", tree, SOURCE, "--buildtype=release", "-Ddefault_library=static", "-Dtests=disabled",
            "-Dbench=disabled", "-Dcuda=disabled")
        run("ninja", "-C", tree, "libraries")
        root = self.work / "root"
        run("meson", "install", "-C", tree, "--no-rebuild", "--tags", "devel", "--destdir", root)
        [pc] = root.rglob("treering.pc")
        flags = run("pkg-config", "--cflags", "--libs", "treering", PKG_CONFIG_PATH=str(pc.parent),
                    PKG_CONFIG_SYSROOT_DIR=str(root)).split()
        program = self.work / "consumer"
        run("cc", "-o", program, HERE / "consumer.c", *flags)
        self.assertNotIn("libtreering.so", run("ldd", program))
        self.assertEqual(run(program), "ok\n")

    def test_fetched_by_cmake(self):
        (self.work / "CMakeLists.txt").write_text(FETCHED.format(source=SOURCE, consumer=HERE / "consumer.c"))
        tree = self.work / "tree"
        # Warnings as in the suite's own build, so that the compiler's cache has the objects.
        run("cmake", "-S", self.work, "-B", tree, f"-DTREERING_BUILD_DIR={self.tree_beside()}",
            "-DTREERING_MESON_OPTIONS=-Dcuda=disabled;-Dwerror=true")
        run("cmake", "--build", tree)
        self.assertEqual(run(tree / "consumer"), "ok\n")

    def test_meson_subproject_is_found(self):
        """Its configuration alone: the objects are those of the other trees."""
        (self.work / "subprojects").mkdir()
        (self.work / "subprojects/treering").symlink_to(SOURCE)
        (self.work / "subprojects/treering.wrap").write_text("[wrap-file]\ndirectory = treering\n\n[provide]\ndependency_names = treering\n")
        (self.work / "meson.build").write_text(SUBPROJECT)
        shutil.copy(HERE / "consumer.c", self.work)
        text = run("meson", "setup", self.work / "tree", self.work, "-Dtreering:cuda=disabled", "-Dtreering:werror=true")
        self.assertIn("Dependency treering found: YES", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
