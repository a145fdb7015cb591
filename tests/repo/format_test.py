#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every C and C++ file is as clang-format of Debian 12 writes it.

usage: format_test.py ROOT CLANG_FORMAT     exit status 77 where clang-format is not there, or of another version
"""

import re
import subprocess
import sys
from pathlib import Path

VERSION = 14  # others break lines elsewhere
FOLDERS = ("src", "include", "python", "tools", "tests", "bench", "docs/examples")
SUFFIXES = (".h", ".c", ".cpp", ".cu")
# Its includes have an order that matters.
NOT_FORMATTED = ("tests/shim/layout_checks.h",)


def main(root, clang_format):
    try:
        said = subprocess.run([clang_format, "--version"], capture_output=True, text=True, check=True).stdout
    except OSError:
        said = ""
    found = re.search(r"version (\d+)", said)
    if not found or int(found[1]) != VERSION:
        print(f"skipped: clang-format {VERSION} is not there ({said.strip() or clang_format})")
        return 77
    files = [str(path) for folder in FOLDERS for path in sorted((root / folder).rglob("*"))
             if path.suffix in SUFFIXES and str(path.relative_to(root)) not in NOT_FORMATTED]
    done = subprocess.run([clang_format, "--dry-run", "--Werror", *files], capture_output=True, text=True)
    print(done.stderr[-4000:])
    if done.returncode != 0:
        print("run clang-format -i on these files")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
