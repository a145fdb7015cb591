#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels in libtreering-cuda: every type, protocol and architecture, without stack, spills or too many registers.

usage: kernels_test.py SOURCE_DIR LIBRARY_DIR CODE     (CODE: sm_75,...,compute_100: what the build asks nvcc for)
"""

import re
import struct
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE, LIBRARY = Path(sys.argv[1]), Path(sys.argv[2])
CODE = sys.argv[3].split(",")
KERNELS = LIBRARY / "device" / "cuda"
ARCHITECTURES = [c for c in CODE if c.startswith("sm_")]
PROTOCOLS = ("ll", "ll128", "simple")
# 512 threads share the 65536 registers of a multiprocessor.
MOST_REGISTERS = 65536 // 512
# What a kernel may share without being asked for more.
MOST_SHARED = 48 << 10


def types():
    text = (SOURCE / "src/core/data_types.h").read_text()
    return re.findall(r"^ *(?:integer|floating|complex) *\(tr\w+, *(\w+),", text, re.MULTILINE)


def fatbin_entries(image):
    """(kind, architecture) of each entry; the layout is that of the header fatbinary_section.h and of what nvcc writes."""
    magic, version, header, size = struct.unpack_from("<IHHQ", image)
    assert magic == 0xBA55ED50, hex(magic)
    at, end, entries = header, header + size, []
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", image, at)
        [architecture] = struct.unpack_from("<I", image, at + 28)
        entries.append(({1: "compute", 2: "sm"}[kind], architecture))
        at += header + size
    return entries


class Kernels(unittest.TestCase):
    def test_there_is_a_type(self):
        header = (SOURCE / "include/treering/types.h").read_text()
        enumerators = re.findall(r"^  (tr\w+) = \d+,", header[header.index("  trInt8"):header.index("trDataTypeForceInt")], re.MULTILINE)
        self.assertEqual(len(types()), len(enumerators) - 1)  # bools are done by the kernels of uint8
        self.assertEqual({p.name[: -len(".fatbin")] for p in KERNELS.glob("*.fatbin")}, set(types()))

    def test_ptxas_compiled_every_kernel(self):
        pattern = re.compile(
            r"Compiling entry function '(\w+)' for '(\w+)'\n"
            r"ptxas info\s*: Function properties for \w+\n"
            r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
            r"ptxas info\s*: Used (\d+) registers.*?, (\d+) bytes smem")
        for name in types():
            found = {}
            for match in pattern.findall((KERNELS / f"{name}.ptxas.log").read_text()):
                found[match[0], match[1]] = [int(number) for number in match[2:]]
            expected = {(f"treering_{name}_{p}", a) for p in PROTOCOLS for a in ARCHITECTURES}
            if name == "complex128":  # never sent by LL128: an empty kernel, which shares nothing
                expected = {e for e in expected if "ll128" not in e[0]}
            self.assertLessEqual(expected, set(found), name)
            for kernel, (stack, stores, loads, registers, shared) in found.items():
                self.assertEqual((stack, stores, loads), (0, 0, 0), kernel)
                self.assertLessEqual(registers, MOST_REGISTERS, kernel)
                self.assertLessEqual(shared, MOST_SHARED, kernel)

    def test_nothing_else_was_said(self):
        for name in types():
            for line in (KERNELS / f"{name}.ptxas.log").read_text().splitlines():
                self.assertNotRegex(line, r"(?i)warning|error", name)

    def test_fatbins_have_every_architecture(self):
        expected = {(c.split("_")[0], int(c.split("_")[1])) for c in CODE}
        for name in types():
            self.assertEqual(set(fatbin_entries((KERNELS / f"{name}.fatbin").read_bytes())), expected, name)

    def test_fatbins_are_in_the_library(self):
        library = (LIBRARY / "libtreering-cuda.so").read_bytes()
        for name in types():
            at = library.find((KERNELS / f"{name}.fatbin").read_bytes())
            self.assertGreater(at, 0, name)
            self.assertEqual(at % 64, 0, name)


class Library(unittest.TestCase):
    def test_links_nothing_of_cuda(self):
        dynamic = subprocess.run(["readelf", "-dW", LIBRARY / "libtreering-cuda.so"], check=True, capture_output=True,
                                 text=True, timeout=60).stdout
        needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
        self.assertEqual([n for n in needed if re.search("cuda|cudart|nvidia|nvrtc", n)], [], needed)
        self.assertIn("[libtreering-cuda.so.0]", dynamic)

    def test_exports_one_function(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY / "libtreering-cuda.so"], check=True,
                                 capture_output=True, text=True, timeout=60).stdout
        self.assertEqual([line.split()[-1] for line in symbols.splitlines()], ["treering_open_device_backend"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
