# SPDX-License-Identifier: Apache-2.0
"""--version of the programs: the name and a number, without any other argument.

usage: version_test.py VERSION PROGRAM...
"""
import os
import subprocess
import sys
import unittest

VERSION, *PROGRAMS = sys.argv[1:]


class Version(unittest.TestCase):
    def test_is_told(self):
        self.assertTrue(PROGRAMS)
        for program in PROGRAMS:
            with self.subTest(program=program):
                done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                line = f"{os.path.basename(program)} {VERSION}"
                # The perf tools add that of the library, which they find at run time.
                self.assertIn(done.stdout, (line + "\n", f"{line}, library {VERSION}\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
