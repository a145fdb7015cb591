#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps the binary interface of the public headers, and finds changes that break programs which are compiled already.

usage: abi.py write INCLUDE_DIR FILE                writes the interface anew
       abi.py compare INCLUDE_DIR FILE [LIBRARY]    prints what is incompatible, also functions that LIBRARY lacks; exit status 1 then

Exit status 77: libabigail (Debian: abigail-tools) or the compiler is not there. FILE is what libabigail's abidw writes.

The library itself is not compiled with debug information. Instead a C file is made of the preprocessed headers, in which each declared
function has an empty body, and is compiled for abidw: the interface is of the headers alone. The headers' numeric macros become an
enumeration in it.

A struct whose first member is `size_t size` may grow at its end: callers tell by `size` how much of it they have. To compare, as many
members are taken of it as FILE has; these must be the same. (libabigail's own has_data_member_inserted_at is of no use here: it also
hides changes of other members.) Functions and enumerators may be added.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

SKIPPED = 77
COMPILER = os.environ.get("CC", "cc").split()
PROGRAMS = (COMPILER[0], "abidw", "abidiff")
ABIDW = ("abidw", "--no-architecture", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-parameter-names",
         "--no-write-default-sizes", "--no-elf-needed")
# These change with each version, or are no numbers.
OTHER_MACROS = {"TR_API", "TR_MAJOR", "TR_MINOR", "TR_PATCH", "TR_VERSION_CODE"}
FUNCTION = re.compile(r'(__attribute__\(\(visibility\("default"\)\)\)[^;{]*?\b(tr[A-Z]\w*)\([^;{]*\));')
STRUCT = re.compile(r"typedef struct(?:\s+\w+)?\s*{([^{}]*)}\s*(tr[A-Z]\w*);")
MACRO = re.compile(r"^#define (TR_\w+)[ \t]+\S", re.MULTILINE)


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def members_of(file):
    """The number of members of each struct in FILE. A struct without a name of its own has that of its typedef."""
    root = xml.etree.ElementTree.parse(file).getroot()
    typedefs = {found.get("id"): found.get("name") for found in root.iter("typedef-decl")}
    return {typedefs.get(found.get("naming-typedef-id"), found.get("name")): len(found.findall("data-member"))
            for found in root.iter("class-decl")}


def cut(text, members):
    """`text` with extensible structs cut to the number of members that is kept."""

    def shorter(found):
        fields, name = [field for field in found[1].split(";") if field.strip()], found[2]
        if not re.fullmatch(r"\s*size_t\s+size\s*", fields[0]) or name not in members:
            return found[0]
        return found[0].replace(found[1], ";".join(fields[:members[name]]) + ";")

    return STRUCT.sub(shorter, text)


def source_of(include, members):
    """The C file, and the names of the functions."""
    headers = "".join(path.read_text() for path in sorted((include / "treering").glob("*.h")))
    macros = sorted(name for name in set(MACRO.findall(headers)) - OTHER_MACROS if not name.endswith("_INITIALIZER"))
    text = "#include <treering/treering.h>\nenum constants {\n"
    text += "".join(f"  value_of_{name} = (int)({name}),\n" for name in macros)
    text += "};\nTR_API void trConstants(enum constants constants);\n"
    text = run(*COMPILER, "-E", "-P", f"-I{include}", "-x", "c", "-", input=text)
    names = [found[2] for found in FUNCTION.finditer(text)]
    return cut(FUNCTION.sub(r"\1 { __builtin_trap(); }", text), members), sorted(set(names) - {"trConstants"})


def write(include, file, members=None):
    """Writes the interface; returns the names of the functions."""
    with tempfile.TemporaryDirectory() as directory:
        source, built = Path(directory) / "headers.c", Path(directory) / "headers.so"
        text, names = source_of(include, members or {})
        source.write_text(text)
        run(*COMPILER, "-g", "-O0", "-w", "-shared", "-fPIC", "-nostdlib", "-o", built, source)
        run(*ABIDW, "--out-file", file, built)
    return names


def compare(include, file, library=None):
    """What is incompatible, or ""."""
    with tempfile.TemporaryDirectory() as directory:
        now = Path(directory) / "now.abi"
        names = write(include, now, members_of(file))
        done = subprocess.run(["abidiff", "--no-added-syms", file, now], capture_output=True, text=True)
        problems = done.stdout + done.stderr if done.returncode != 0 else ""
    if library:
        exported = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()}
        problems += "".join(f"{library} lacks {name}\n" for name in names if name not in exported)
    return problems


def skip_where_it_is_missing():
    for program in PROGRAMS:
        if shutil.which(program) is None:
            print(f"skipped: {program} was not found: tools/install-packages test")
            sys.exit(SKIPPED)


def main(arguments):
    if len(arguments) not in (3, 4) or arguments[0] not in ("write", "compare"):
        sys.exit(__doc__)
    skip_where_it_is_missing()
    include, file = Path(arguments[1]), Path(arguments[2])
    if arguments[0] == "write":
        print(f"{file}: {len(write(include, file))} functions")
        return
    problems = compare(include, file, *arguments[3:])
    if problems:
        sys.exit(f"{problems}\nPrograms compiled with the headers of {file.name} would break. Keep what they use; where that cannot be, "
                 "raise the soversion, and write the file anew: ninja abi")


if __name__ == "__main__":
    main(sys.argv[1:])
