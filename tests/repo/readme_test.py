#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the C program of README.md as it stands there, against the built library, and runs it.

usage: readme_test.py SOURCE_ROOT LIBRARY_FOLDER COMPILER..."""
import os
import re
import subprocess
import sys
import tempfile

root, library, *compiler = sys.argv[1:]
with open(os.path.join(root, "README.md"), encoding="utf-8") as readme:
    programs = re.findall(r"```c\n(.*?)```", readme.read(), re.DOTALL)
assert len(programs) == 1, f"{len(programs)} C programs in README.md"
with tempfile.TemporaryDirectory() as folder:
    source, program = os.path.join(folder, "program.c"), os.path.join(folder, "program")
    with open(source, "w", encoding="utf-8") as file:
        file.write(programs[0])
    subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", "-I", os.path.join(root, "include"), source, "-o", program,
                    "-L", library, "-ltreering", f"-Wl,-rpath,{library}"], check=True)
    ran = subprocess.run([program], check=True, timeout=60, capture_output=True, text=True)
expected = [f"rank {rank}: 6 10 14 18" for rank in range(4)]
assert sorted(ran.stdout.splitlines()) == expected, ran.stdout
print("ok")
