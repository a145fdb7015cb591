#!/usr/bin/env python3
"""Checks the sources against the rules of the architecture: include arrows between modules, and file lengths.

usage: source_rules.py ROOT       checks the repository; prints each violation; exit status 1 when there is one
       source_rules.py --self-test ROOT   plants violations in a copy and expects each to be found

A module may include its own headers, core/, the C API and what ARROWS allows. Anything else is a violation.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# module -> what it may include; an entry with a slash is one header. The C API (treering/) and core/ are for all.
ARROWS = {
    "core": [],
    "topology": [],
    "transport": [],
    "algorithms": ["topology/plan.h"],
    "executor": ["algorithms", "transport"],
    "communicator": ["topology", "algorithms", "executor", "transport"],
    "api": ["communicator"],
    "shim": [],  # the C API alone
}
# Tools use the C API alone; these look at plans and schedules, which need no communicator.
TOOL_ARROWS = {
    "schedule-dump.cpp": ["topology", "algorithms", "core"],
    "treering_topo.cpp": ["topology", "algorithms", "core"],
}
MAX_LINES = 500
SOURCES = ("*.h", "*.c", "*.cpp", "*.cc", "*.cu", "*.cuh", "*.py")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def sources(folder):
    return sorted(path for pattern in SOURCES for path in folder.rglob(pattern) if path.is_file())


def allowed(included, module, arrows):
    first = included.split("/")[0]
    return first in ("treering", "core", module) or first in arrows or included in arrows


def check_module_includes(root):
    for folder in sorted((root / "src").iterdir()):
        if not folder.is_dir():
            continue
        if folder.name not in ARROWS:
            yield f"src/{folder.name}: an unknown module; add its arrows to {Path(__file__).name}"
            continue
        for path in sources(folder):
            name = str(path.relative_to(root))
            for included in INCLUDE.findall(path.read_text()):
                if included.split("/")[0] not in [*ARROWS, "treering"]:
                    continue
                if not allowed(included, folder.name, ARROWS[folder.name]):
                    yield f"{name}: includes {included}: {folder.name} may include {ARROWS[folder.name] or 'core alone'}"


def check_tool_includes(root):
    for path in [p for folder in ("tools", "bench/peers") for p in sources(root / folder)]:
        arrows = TOOL_ARROWS.get(path.name, [])
        for included in INCLUDE.findall(path.read_text()):
            if included.split("/")[0] in ARROWS and included.split("/")[0] not in arrows:
                yield f"{path.relative_to(root)}: includes {included}: a tool may include the C API {arrows or 'alone'}"


def check_public_header(root):
    for path in sources(root / "include"):
        for included in INCLUDE.findall(path.read_text()):
            if included.split("/")[0] in ARROWS:
                yield f"{path.relative_to(root)}: includes {included}: a public header stands alone"


def check_lengths(root):
    for folder in ("src", "include", "tools", "tests", "bench"):
        for path in sources(root / folder):
            lines = path.read_text().count("\n")
            if lines > MAX_LINES:
                yield f"{path.relative_to(root)}: {lines} lines; {MAX_LINES} at most: it is two things"


def violations(root):
    for check in (check_module_includes, check_tool_includes, check_public_header, check_lengths):
        yield from check(root)


# file, text that is put in front, words of the report
PLANTED = [
    ("src/transport/fifo.h", '#include "executor/execution.h"\n', "executor/execution.h"),
    ("src/topology/plan.cpp", '#include "algorithms/schedule.h"\n', "algorithms/schedule.h"),
    ("src/algorithms/ring.cpp", '#include "topology/topology.h"\n', "topology/topology.h"),
    ("src/executor/reduce.cpp", "#  include <communicator/watch.h>\n", "communicator/watch.h"),
    ("src/api/handles.cpp", '#include "executor/reduce.h"\n', "executor/reduce.h"),
    ("src/core/log.cpp", '#include "transport/transport.h"\n', "transport/transport.h"),
    ("tools/perf/main.cpp", '#include "executor/reduce.h"\n', "executor/reduce.h"),
    ("tools/schedule-dump.cpp", '#include "executor/reduce.h"\n', "executor/reduce.h"),
    ("include/treering/treering.h", '#include "core/types.h"\n', "core/types.h"),
    ("src/novel/thing.cpp", "int x;\n", "unknown module"),
    ("src/executor/reduce.h", "// long\n" * MAX_LINES, "500 at most"),
]


def self_test(root):
    """Each planted violation, alone, is reported, and nothing besides what was there before."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        for folder in ("src", "include", "tools", "tests", "bench"):
            shutil.copytree(root / folder, copy / folder)
        before = set(violations(copy))
        for name, text, words in PLANTED:
            path = copy / name
            original = path.read_text() if path.exists() else None
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + (original or ""))
            found = set(violations(copy)) - before
            if len(found) != 1 or words not in next(iter(found)):
                sys.exit(f"planted in {name}: {text[:60]!r}: expected one report with {words!r}, got {sorted(found)}")
            status = subprocess.run([sys.executable, __file__, copy], stdout=subprocess.DEVNULL).returncode
            if status != 1:
                sys.exit(f"planted in {name}: exit status {status}, not 1")
            if original is not None:
                path.write_text(original)
            else:
                shutil.rmtree(path.parent)
        assert set(violations(copy)) == before
    print(f"{len(PLANTED)} planted violations found")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--self-test":
        return self_test(Path(arguments[1]))
    if len(arguments) != 1:
        sys.exit(__doc__)
    found = list(violations(Path(arguments[0])))
    for violation in found:
        print(violation)
    if found:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
