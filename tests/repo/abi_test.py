#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built library has the binary interface of packaging/abi, and changes that break it are found.

usage: abi_test.py ROOT LIBRARY     exit status 77 where libabigail is not there
"""

import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT, LIBRARY = Path(sys.argv[1]), Path(sys.argv[2])
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "packaging/abi"))
import abi  # noqa: E402

KEPT = ROOT / "packaging/abi/libtreering.so.0.abi"
RELEASED = sorted((ROOT / "packaging/abi").glob("[0-9]*.abi"))
FUNCTION = "TR_API trResult_t trBarrier("
# file, what is replaced, by what, words of the report
BREAKING = [
    ("collectives.h", r"TR_API trResult_t trBarrier\(.*", "", "'function trResult_t trBarrier"),
    ("collectives.h", r"(trAllReduce\([^)]*)size_t count", r"\1int count", "parameter 3 of type"),
    ("collectives.h", r"trBarrier\(trComm_t comm, ", "trBarrier(", "trBarrier"),
    ("async.h", r"(\*trCallback\)\([^)]*)void\* context", r"\1int context", "trCallback"),
    ("types.h", r"trTimeout = 8", "trTimeout = 9", "trResult_t::trTimeout"),
    ("types.h", r"  trMax = 2,", "", "trRedOp_t::trMax"),
    ("types.h", r"UNIQUE_ID_BYTES 128", "UNIQUE_ID_BYTES 256", "char internal[128]"),
    ("types.h", r"int channels;", "float channels;", "int channels"),
    ("types.h", r"int channels;", "int more; int channels;", "data member"),
    ("types.h", r"int channels;", "", "int channels"),
    ("types.h", r"(int channels;)(.*\n *)(int staging_bytes;)", r"\3\2\1", "channels"),
    ("types.h", r"int channels;([^}]*)} trConfig_t;", r"float channels;\1int more; } trConfig_t;", "int channels"),
    ("types.h", r"size_t size; ", "uint64_t magic2; size_t size; ", "data member"),
    ("types.h", r"TR_CONFIG_MAGIC 0x74726367u", "TR_CONFIG_MAGIC 1", "value_of_TR_CONFIG_MAGIC"),
    ("async.h", r"TR_DOUBLE_BUFFER_RESTART 2", "TR_DOUBLE_BUFFER_RESTART 4", "value_of_TR_DOUBLE_BUFFER_RESTART"),
    # It has no member that tells its size.
    ("communicator.h", r"} trSelection_t;", "int more; } trSelection_t;", "trSelection_t"),
    ("sparse.h", r"} trBox_t;", "int more; } trBox_t;", "trBox_t"),
]
COMPATIBLE = [
    ("collectives.h", re.escape(FUNCTION), "TR_API trResult_t trNew(int value); " + FUNCTION),
    ("types.h", r"trTimeout = 8,", "trTimeout = 8, trNewResult = 9,"),
    ("types.h", r"} trConfig_t;", "int more; double still_more; } trConfig_t;"),
    ("types.h", r"TR_MINOR \d+", "TR_MINOR 99"),
]


class Abi(unittest.TestCase):
    def changed(self, file, pattern, replacement):
        """What is found after a change in a copy of the headers."""
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / "include"
            shutil.copytree(ROOT / "include", copy)
            header = copy / "treering" / file
            text, count = re.subn(pattern, replacement, header.read_text(), count=1)
            self.assertEqual(count, 1, f"{file} has no {pattern}")
            header.write_text(text)
            return abi.compare(copy, KEPT)

    def test_library(self):
        self.assertEqual(abi.compare(ROOT / "include", KEPT, LIBRARY), "",
                         "compiled programs would break: keep what they use; or raise the soversion and run: ninja abi")

    def test_programs_of_released_versions(self):
        self.assertTrue(RELEASED)
        for kept in RELEASED:
            with self.subTest(kept.name):
                self.assertEqual(abi.compare(ROOT / "include", kept, LIBRARY), "", "these files are never written anew")

    def test_every_function_is_kept(self):
        """What the file lacks could change unseen."""
        kept = set(re.findall(r"<elf-symbol name='(tr\w+)'", KEPT.read_text()))
        declared = set(abi.source_of(ROOT / "include", {})[1])
        self.assertEqual(declared - kept, set(), "run: ninja abi")

    def test_breaking_changes_are_found(self):
        for file, pattern, replacement, words in BREAKING:
            with self.subTest(file=file, pattern=pattern, replacement=replacement):
                self.assertIn(words, self.changed(file, pattern, replacement))

    def test_compatible_changes_are_allowed(self):
        for file, pattern, replacement in COMPATIBLE:
            with self.subTest(file=file, pattern=pattern, replacement=replacement):
                self.assertEqual(self.changed(file, pattern, replacement), "")

    def test_a_function_that_the_library_lacks_is_named(self):
        with tempfile.TemporaryDirectory() as directory:
            other = Path(directory) / "other.so"
            abi.run(*abi.COMPILER, "-shared", "-fPIC", "-x", "c", "-o", other, "-", input="void trBarrier(void) {}")
            problems = abi.compare(ROOT / "include", KEPT, other)
            self.assertIn(f"{other} lacks trAllReduce\n", problems)
            self.assertNotIn("lacks trBarrier", problems)


if __name__ == "__main__":
    abi.skip_where_it_is_missing()
    unittest.main(argv=sys.argv[:1], verbosity=2)
