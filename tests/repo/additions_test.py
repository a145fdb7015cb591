#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md's claims about additions, held to: makes each of them in a copy of the sources, counts the files that it had to
touch, compiles what the addition needs, without optimisation, and runs a program that uses it (tests/repo/additions).

usage: additions_test.py SOURCE_ROOT BUILD_ROOT [NAME]
"""
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COPIED = ("src", "include", "tools/perf")


class Copy:
    """A copy of the sources, in which additions are made."""

    def __init__(self, root, build, folder):
        self.root, self.build, self.folder = root, build, folder
        for name in COPIED:
            shutil.copytree(root / name, folder / name)
        commands = json.loads((build / "compile_commands.json").read_text())
        self.commands = {os.path.relpath(Path(c["directory"], c["file"]).resolve(), root): c["command"] for c in commands}
        self.touched = []

    def replace(self, name, old, new):
        path = self.folder / name
        text = path.read_text()
        if text.count(old) != 1:
            sys.exit(f"{name} has {old!r} {text.count(old)} times: the place of an addition is not where this test looks for it")
        path.write_text(text.replace(old, new))
        self.touched.append(name)

    def insert(self, name, before, text):
        self.replace(name, before, text + before)

    def create(self, name, source):
        shutil.copy(self.root / "tests/repo/additions" / source, self.folder / name)
        self.touched.append(name)

    def at_most(self, count):
        touched = sorted(set(self.touched))
        if len(touched) > count:
            sys.exit(f"{len(touched)} files had to be touched, CONTRIBUTING.md says {count}: {', '.join(touched)}")
        print(f"{len(touched)} files: {', '.join(touched)}")

    def compile(self, name, like=None, syntax_only=False, more=()):
        """Compiles a source of the copy, or a program of tests/repo/additions, as the build compiles `like`."""
        program = not (self.folder / name).exists()
        source = self.root / "tests/repo/additions" / name if program else self.folder / name
        made = self.folder / (name.replace("/", "_") + ".o")
        words = shlex.split(self.commands[like or name])
        flags, skip = [], 0
        for word in words:
            if skip or word in ("-MQ", "-MF", "-o", "-c"):
                skip = 0 if skip else 1
            elif word.startswith("-I"):
                path = os.path.relpath((self.build / word[2:]).resolve(), self.root)
                flags.append(f"-I{self.folder / path}" if path.startswith(COPIED) else word)
            elif word not in ("-MD", "-g") and not word.startswith("-O"):
                flags.append(word)
        mode = ["-fsyntax-only"] if syntax_only else ["-c", "-o", made]
        subprocess.run([*flags, "-O0", *more, *mode, source], cwd=self.build, check=True)
        return made

    def run(self, objects, libraries=()):
        program = self.folder / "program"
        compiler = list(itertools.takewhile(lambda word: not word.startswith("-"), shlex.split(self.commands["src/core/config.cpp"])))
        libraries = [*libraries, *self.build.glob("libtreering_fmt.a")]  # where fmt is not compiled from its headers alone
        subprocess.run([*compiler, "-pthread", f"-Wl,-rpath,{self.build / 'src'}", "-o", program, *objects, *libraries], check=True)
        subprocess.run([program], check=True, timeout=60)

    def library(self):
        """What the addition leaves as it is."""
        return self.build / "src/libtreering_internal.a"


def algorithm(copy):
    """A new file, the declaration of its row, the list, the build's list of files."""
    copy.create("src/algorithms/there_and_back.cpp", "there_and_back.cpp")
    copy.insert("src/algorithms/algorithm.h", "extern const Algorithm kHybrid,", "extern const Algorithm kThereAndBack;\n")
    copy.insert("src/algorithms/algorithms.cpp", "&kOneShot,", "&kThereAndBack, ")
    copy.insert("src/algorithms/meson.build", "'tree.cpp'", "'there_and_back.cpp', ")
    copy.at_most(4)
    like = "src/algorithms/two_shot.cpp"
    copy.run([copy.compile("algorithm.cpp", like), copy.compile("src/algorithms/there_and_back.cpp", like),
              copy.compile("src/algorithms/algorithms.cpp")], [copy.library()])


ROWS = """\
  integer (trInt16,      int16,      "int16",      int16_t,   15, Plain<int16_t>)                           \\
  floating(trFloat8e3m4, float8e3m4, "f8e3m4",     uint8_t,   5,  Float8e3m4)                               \\
"""


def data_type(copy):
    """An integer, whose representations are there: two files. A float of a new format: these, and its representations."""
    header = (copy.folder / "include/treering/types.h").read_text()
    next_one = 1 + int(re.findall(r"= (\d+),", header[:header.index("trDataTypeForceInt")])[-1])
    copy.insert("include/treering/types.h", "  trDataTypeForceInt = ", f"  trInt16 = {next_one},\n  trFloat8e3m4 = {next_one + 1},\n")
    copy.insert("src/core/data_types.h", "  /* here the next one */", ROWS)
    copy.at_most(2)
    copy.insert("src/executor/reduce/reduce_types-inl.h", "using Float8e5m2 =", "using Float8e3m4 = Float8<4, 3, false>;\n")
    copy.insert("src/device/numbers.h", "template <class T>\nstruct Complex {", "using Float8e3m4 = Narrow<uint8_t, 4, 3, 0x7f>;\n\n")
    copy.at_most(4)
    kernels = [f"src/executor/reduce/{name}.cpp" for name in ("reduce_float", "reduce_integer", "reduce_logical")]
    parts = ["src/executor/reduce/reduce.cpp", "src/executor/reduce/reduce_tiles.cpp", "tools/perf/data.cpp", "tools/perf/datatypes.cpp"]
    one_target = ["-DHWY_COMPILE_ONLY_STATIC"]
    copy.run([copy.compile("data_type.cpp", "src/executor/reduce/reduce.cpp", more=[f"-I{copy.folder / 'tools/perf'}"]),
              *[copy.compile(name, more=one_target) for name in kernels], *[copy.compile(name) for name in parts]], ["-lhwy"])


OPTION = """\
    {"patience", "TREERING_PATIENCE", "0 to 9", "5", "3", "How often a thing is tried.", true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_PATIENCE", 0, 9, 1, &config->patience);
     },
     [](const Config& config) { return std::to_string(config.patience); }},
"""


def option(copy):
    """A field of Config, and a row of the table."""
    copy.insert("src/core/config.h", "  std::string device_protocol;", "  int patience = 3;\n")
    copy.insert("src/core/config.cpp", '    {"name", nullptr,', OPTION)
    copy.at_most(2)
    copy.run([copy.compile("option.cpp", "src/core/config.cpp"), copy.compile("src/core/config.cpp")], [copy.library()])


SHIFT_ENTRY = """\
trResult_t trShift(const void* sendbuf, void* recvbuf, size_t count, trDataType_t datatype, trComm_t comm,
                   trStream_t stream) {
  return submit(comm, operation_of("trShift", Collective::kShift, sendbuf, recvbuf, count, datatype), stream);
}

"""
SHIFT_CASE = """\
    {"shift", trCollShift, false, false, false, kBlock, kBlock, 0,
     [](const Shape&, const CallArguments& a) {
       return trShift(a.input, a.output, a.count, a.type, a.comm, a.stream);
     },
     previous},
"""


def collective(copy):
    """A row, an algorithm and its case, the entry point with its declaration and number, a row of the perf tools."""
    copy.insert("src/algorithms/collective.h", "};\ninline constexpr size_t kCollectiveCount", "  kShift,\n")
    copy.replace("src/algorithms/collective.h", "kCollectiveCount = 9;", "kCollectiveCount = 10;")
    copy.insert("src/algorithms/collective.cpp", "constexpr BlockIndex kAlone =",
                "bool of_previous(const PartOf& p) { return (p.part + 1) % p.ranks == p.rank; }\n")
    copy.insert("src/algorithms/collective.cpp", "};\nstatic_assert", '    {Collective::kShift, "shift", Parts::kRanks, false, false, '
                "true, own_part, of_previous, kAlone, kAlone},\n")
    copy.create("src/algorithms/shift.cpp", "shift.cpp")
    copy.insert("src/algorithms/meson.build", "'tree.cpp'", "'shift.cpp', ")
    copy.insert("src/algorithms/algorithm.h", "extern const Algorithm kHybrid,", "extern const Algorithm kShiftDirect;\n")
    copy.insert("src/algorithms/algorithms.cpp", "  switch (collective) {\n", "  static constexpr const Algorithm* kShiftRows[] = {&kShiftDirect};\n")
    copy.insert("src/algorithms/algorithms.cpp", "    case Collective::kBarrier:\n", "    case Collective::kShift:\n      return kShiftRows;\n")
    copy.insert("include/treering/types.h", "  trCollForceInt = ", "  trCollShift = 9,\n")
    copy.insert("include/treering/collectives.h", "/** Ends on no rank before every", "TR_API trResult_t trShift(const void* sendbuf, void* "
                "recvbuf, size_t count, trDataType_t datatype, trComm_t comm,\n                          trStream_t stream);\n\n")
    copy.insert("src/api/collectives.cpp", "trResult_t trBarrier(", SHIFT_ENTRY)
    copy.insert("tools/perf/collective.cpp", '    {"barrier", trCollBarrier,', SHIFT_CASE)
    copy.at_most(10)
    copy.compile("src/api/collectives.cpp", syntax_only=True)
    like = "src/algorithms/two_shot.cpp"
    copy.run([copy.compile("collective.cpp", like, more=[f"-I{copy.folder / 'tools/perf'}"]), copy.compile("src/algorithms/shift.cpp", like),
              *[copy.compile(name) for name in ("src/algorithms/collective.cpp", "src/algorithms/algorithms.cpp", "tools/perf/collective.cpp")]],
             [copy.build / "src/libtreering.so", copy.library()])


def main(root, build, *names):
    for addition in (algorithm, data_type, option, collective):
        if names and addition.__name__ not in names:
            continue
        print(f"{addition.__name__}: {addition.__doc__}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                addition(Copy(Path(root).resolve(), Path(build).resolve(), Path(folder).resolve()))
            except subprocess.CalledProcessError as error:
                sys.exit(f"{addition.__name__}: exit status {error.returncode} of {shlex.join(map(str, error.cmd))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
