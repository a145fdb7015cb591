#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the build into a temporary prefix and uses it as a stranger would: pkg-config, CMake, symbols, soname.

usage: install_test.py BUILD_DIR SOURCE_DIR PREFIX   (PREFIX: the one that the build is configured for)
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD, SOURCE, PREFIX = (Path(argument) for argument in sys.argv[1:4])
HERE = SOURCE / "tests" / "install"


def run(*command, **options):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, **options)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.work = Path(cls.directory.name)
        cls.root = cls.work / "root"
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", cls.root)
        cls.prefix = cls.root / PREFIX.relative_to("/")
        [cls.library] = [p for p in cls.prefix.rglob("libtreering.so") if p.exists()]

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def expect_consumer_works(self, program):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.library.parent)}
        self.assertEqual(run(program, env=environment), "ok\n")

    def test_files(self):
        names = {p.name for p in self.prefix.rglob("*")}
        for name in ("treering.h", "libtreering.so", "libtreering.so.0", "treering.pc", "treering-config.cmake",
                     "treering-config-version.cmake", "treering-topo", "treering-trace"):
            self.assertIn(name, names)
        self.assertFalse([n for n in names if n.endswith(".a") or n.endswith("_test")], "internals are installed")

    def test_cuda_backend_lies_beside_the_library(self):
        if not (BUILD / "src/libtreering-cuda.so").exists():
            self.skipTest("built without CUDA")
        self.assertTrue((self.library.parent / "libtreering-cuda.so.0").exists())

    def test_symbols(self):
        lines = run("nm", "-D", "--defined-only", self.library).splitlines()
        names = [line.split()[-1].split("@")[0] for line in lines]
        self.assertIn("trAllReduce", names)
        self.assertEqual([n for n in names if not re.fullmatch(r"tr[A-Z]\w*", n)], [])
        header = "".join(p.read_text() for p in (self.prefix / "include/treering").glob("*.h"))
        declared = re.findall(r"^TR_API [^(]*?\b(tr[A-Z]\w*)\(", header, re.MULTILINE)
        self.assertEqual(sorted(declared), sorted(names), "the header and the library differ")

    def test_soname(self):
        self.assertIn("[libtreering.so.0]", run("readelf", "-d", self.library))

    def test_header_alone(self):
        for compiler, language in (("cc", "c"), ("c++", "c++")):
            if shutil.which(compiler):
                source = self.work / f"alone.{language[:1]}{'pp' if language == 'c++' else ''}"
                source.write_text("#include <treering/treering.h>\n")
                run(compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language, "-fsyntax-only",
                    f"-I{self.prefix}/include", source)

    def test_pkg_config(self):
        [pc] = self.prefix.rglob("treering.pc")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(self.root)}
        environment.pop("PKG_CONFIG_LIBDIR", None)
        flags = run("pkg-config", "--cflags", "--libs", "treering", env=environment).split()
        self.assertIn("-ltreering", flags)
        self.assertEqual(run("pkg-config", "--modversion", "treering", env=environment).strip().count("."), 2)
        # A user of the shared library needs none of what it is built from.
        self.assertEqual([f for f in flags if f.startswith("-l") and f != "-ltreering"], [])
        program = self.work / "by-pkg-config"
        run("cc", "-Wall", "-Wextra", "-Werror", "-o", program, HERE / "consumer.c", *flags)
        self.expect_consumer_works(program)

    def test_tools_find_their_library(self):
        environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        for name in ("treering-perf", "allreduce-perf"):
            self.assertIn("0.", run(self.prefix / "bin" / name, "--version", env=environment))

    def test_manuals(self):
        if shutil.which("help2man") is None:
            self.skipTest("help2man was not found: tools/install-packages test")
        for tool in ("treering-perf", "allreduce-perf", "treering-topo", "treering-trace"):
            text = (self.prefix / "share/man/man1" / f"{tool}.1").read_text()
            self.assertIn(".SH OPTIONS", text)
            self.assertIn("\\-\\-help", text)

    def test_completion(self):
        for tool, option in (("treering-perf", "--csv"), ("treering-topo", "--version"), ("treering-trace", "--least")):
            script = self.prefix / "share/bash-completion/completions" / tool
            completed = run("bash", "-c", f"source {script}; COMP_WORDS=({tool} {option[:4]}) COMP_CWORD=1; "
                            f"_treering {self.prefix}/bin/{tool}; echo ${{COMPREPLY[@]}}")
            self.assertIn(option, completed.split())

    def test_no_link_of_the_documentation_is_dead(self):
        home = self.prefix / "share/doc/treering"
        pages = sorted(home.rglob("*.md"))
        self.assertIn(home / "docs/options.md", pages)
        dead = []
        for page in pages:
            text = re.sub(r"^(    |```).*$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE)  # code has none
            links = re.findall(r"\]\(\s*<?([^)\s>]+)|(?:src|href)=\"([^\"]+)\"|^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
            for link in ("".join(found).split("#")[0] for found in links):
                if link and not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                    dead.append(f"{page.relative_to(home)}: {link}")
        self.assertEqual(dead, [])

    def test_nccl(self):
        home = self.library.parent / "treering" / "nccl"
        self.assertEqual(sorted(p.name for p in (home / "include").iterdir()), ["nccl.h", "nccl_device.h"])
        self.assertEqual(sorted(p.name for p in (home / "lib").iterdir())[:2], ["libnccl.so", "libnccl.so.2"])
        pages = self.prefix / "share" / "doc"
        elsewhere = [p for p in self.prefix.rglob("*nccl*") if home not in (p, *p.parents) and pages not in p.parents]
        self.assertEqual(elsewhere, [], "it must not stand in for a real NCCL by accident")
        dynamic = run("readelf", "-d", home / "lib" / "libnccl.so")
        self.assertIn("[libnccl.so.2]", dynamic)
        self.assertIn("(RUNPATH)", dynamic)
        self.assertIn("[$ORIGIN/../../..]", dynamic)
        for compiler, language in (("cc", "c"), ("c++", "c++")):
            run(compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language, "-fsyntax-only",
                f"-I{home}/include", "-include", "nccl.h", home / "include/nccl_device.h")
        program = self.work / "by-nccl"
        run("cc", "-Wall", "-Wextra", "-Werror", "-o", program, HERE / "nccl_consumer.c", f"-I{home}/include",
            f"-L{home}/lib", "-lnccl", f"-Wl,-rpath,{home}/lib", f"-Wl,-rpath-link,{self.library.parent}")
        environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        self.assertEqual(run(program, env=environment), "ok\n", "the library finds libtreering.so.0 by itself")

    def test_cmake(self):
        self.assertIsNotNone(shutil.which("cmake"), "cmake is needed by this test: tools/install-packages test")
        project = (HERE / "../../meson.build").read_text()
        major, minor, patch = map(int, re.search(r"version: '(\d+)\.(\d+)\.(\d+)'", project).groups())
        tree = self.work / "by-cmake"
        configure = ["cmake", "-S", HERE, f"-DCMAKE_PREFIX_PATH={self.prefix}"]
        run(*configure, "-B", tree, f"-DTREERING_WANTED={major}.{minor}")
        run("cmake", "--build", tree)
        self.expect_consumer_works(tree / "consumer")
        for version in (f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 1}", f"{major + 1}.0"):
            refused = subprocess.run([*configure, "-B", self.work / version, f"-DTREERING_WANTED={version}"],
                                     capture_output=True, text=True, timeout=120)
            self.assertNotEqual(refused.returncode, 0, version)
            self.assertIn("compatible with requested version", refused.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
