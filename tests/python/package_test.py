# SPDX-License-Identifier: Apache-2.0
"""What the package is: its import, its stubs, its documentation, Python without the GIL."""
import ast
import inspect
import os
import subprocess
import sys
import sysconfig
import unittest

import treering
from treering import _native

FOLDER = os.path.dirname(treering.__file__)
SANITIZED = "LD_PRELOAD" in os.environ
MAX_IMPORT_SECONDS = 0.2


def python(text):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60)


class Package(unittest.TestCase):
    def test_import_is_short(self):
        """In time of the processor, in the best of some runs: other load on the machine is not its."""
        best = min(self.import_seconds() for _ in range(5))
        print(f"import treering: {best * 1000:.0f} ms")
        if not SANITIZED:
            self.assertLess(best, MAX_IMPORT_SECONDS)

    @staticmethod
    def import_seconds():
        text = "import time; begin = time.process_time(); import treering; print(time.process_time() - begin)"
        return float(python(text).stdout)

    def test_import_brings_no_array_library(self):
        text = "import sys, treering; print(*sorted({'numpy', 'torch', 'jax', 'cupy', 'ml_dtypes'} & set(sys.modules)))"
        self.assertEqual(python(text).stdout, "\n")

    def test_version(self):
        self.assertRegex(treering.__version__, r"^\d+\.\d+\.\d+$")

    def test_the_library_lies_beside_it(self):
        self.assertTrue(os.path.exists(os.path.join(FOLDER, "libtreering.so.0")))

    def test_types(self):
        self.assertIn("float32", treering.data_types())
        self.assertEqual(treering.operations()[:3], ["sum", "prod", "max"])

    @unittest.skipIf(SANITIZED, "stubs are not made with a sanitizer")
    def test_stubs_have_all(self):
        self.assertTrue(os.path.exists(os.path.join(FOLDER, "py.typed")))
        with open(os.path.join(FOLDER, "_native.pyi"), encoding="utf-8") as file:
            names = {node.name for node in ast.parse(file.read()).body if hasattr(node, "name")}
        self.assertLessEqual({name for name in dir(_native) if not name.startswith("_")}, names)

    def test_everything_public_is_documented(self):
        for name in treering.__all__:
            value = getattr(treering, name)
            self.assertTrue(inspect.getdoc(value), name)
            if inspect.isclass(value) and value.__module__.startswith("treering") and not issubclass(value, Exception):
                for member, function in inspect.getmembers(value):
                    if not member.startswith("_"):
                        self.assertTrue(inspect.getdoc(function), f"{name}.{member}")

    @unittest.skipUnless(sysconfig.get_config_var("Py_GIL_DISABLED"), "this Python has the GIL")
    def test_free_threading_is_declared(self):
        self.assertEqual(python("import sys, treering; print(sys._is_gil_enabled())").stdout, "False\n")


if __name__ == "__main__":
    unittest.main()
