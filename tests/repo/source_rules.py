#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the sources against the rules: arrows between the folders of src/, sizes, names, expressions, words, licence lines, sleeps of tests.

usage: source_rules.py ROOT       checks the repository; prints each violation; exit status 1 when there is one
       source_rules.py --self-test ROOT   plants violations in a copy and expects each to be found

A folder may use its own headers, core/, the C API and what ARROWS allows. What a header includes counts for all that include it, and
a forward declaration of a type of another folder counts like an include.

Tests wait for conditions. What their literal sleeps add up to, each counted once, is printed, and limited.
"""

import functools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from reading import CODE, SOURCES, files_below, sources, text_of
from words import check_named_files, check_page_lines, check_words

# folder -> what it may use; an entry with a slash is one header, or the headers of one folder below. The C API (treering/) and core/
# are for all.
ARROWS = {
    "core": [],
    "metrics": [],
    "topology": [],
    "transport": [],
    "algorithms": ["topology/plan.h"],
    "executor": ["algorithms", "topology/plan.h", "transport"],
    "device": ["algorithms", "topology/plan.h"],
    "bootstrap": ["transport/introduction.h"],
    "launch": ["bootstrap", "transport/introduction.h"],
    "failure": ["bootstrap", "executor", "algorithms", "topology/plan.h", "transport"],
    "peers": ["failure", "bootstrap", "executor", "algorithms", "topology", "transport"],
    "communicator": ["peers", "failure", "bootstrap", "executor", "algorithms", "topology", "transport", "metrics"],
    "progress": ["communicator", "peers", "failure", "bootstrap", "executor", "algorithms", "topology", "transport", "metrics"],
    "gpu": ["progress", "device", "communicator", "peers", "failure", "bootstrap", "executor", "algorithms", "topology", "transport",
            "metrics"],
    "api": ["launch", "gpu", "progress", "device", "communicator", "peers", "failure", "bootstrap", "executor", "algorithms",
            "topology", "transport", "metrics"],
    "shim": [],  # the C API alone
}
# What a folder may name in an include of its own, of what it may use.
DIRECT = {
    "api": ["launch", "gpu", "progress", "communicator", "bootstrap/membership.h"],
    "gpu": ["progress", "device", "communicator", "executor"],
    "progress": ["communicator"],
    "launch": ["bootstrap"],
}
MAX_FILES = 30  # of a folder; the folders below it not counted
MANY_FILES = ["algorithms"]  # a file for each algorithm
# Tools use the C API alone; these look at plans and schedules, which need no communicator.
TOOL_ARROWS = {
    "schedule-dump.cpp": ["topology", "algorithms", "core"],
    "treering_topo.cpp": ["topology", "algorithms", "core", "communicator/needs.h"],
    "topo_search.h": ["topology", "core"],
    "topo_search.cpp": ["topology", "core"],
}
MAX_LINES = 500
MAX_SLEEP = 15  # seconds, in all of tests/
# A call that sleeps, in C++ or Python -> the seconds of its argument's unit. None: the argument names it.
SLEEPS = {r"\bsleep_(?:for|until)\s*\(": None, r"\busleep\s*\(": 1e-6, r"\bnanosleep\s*\(": None,
          r"(?:\btime\.|(?<![\w.])(?<!def ))sleep\s*\(": 1.0}
UNITS = {"nanoseconds": 1e-9, "ns": 1e-9, "microseconds": 1e-6, "us": 1e-6, "milliseconds": 1e-3, "ms": 1e-3, "seconds": 1.0, "s": 1.0,
         "minutes": 60.0, "min": 60.0}
UNREADABLE_SLEEP = 1.0  # what a sleep counts without a number in it
NUMBER = re.compile(r"(?<![\w.])(\d[\d']*\.?\d*(?:e-?\d+)?)(ns|us|ms|s|min)?\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


@functools.cache
def found_in(text, pattern):
    return re.findall(pattern, text)


def allowed(included, folder, arrows):
    parts = included.split("/")
    return parts[0] in ("treering", "core", folder) or any("/".join(parts[:n]) in arrows for n in range(1, len(parts) + 1))


class Sources:
    """What the files of src/ include and name."""

    FORWARD = re.compile(r"^(?:class|struct)\s+(\w+);", re.MULTILINE)
    DEFINED = re.compile(r"^(?:class|struct)(?:\s+alignas\(\w+\))?\s+(\w+)(?:\s+final)?\s*(?::[^:;{][^;{]*)?\{", re.MULTILINE)

    def __init__(self, root):
        self.root = root / "src"
        self.texts = {str(path.relative_to(self.root)): text_of(path) for path in sources(self.root)}
        self.home = {}  # of a type that one header alone defines
        for name, text in self.texts.items():
            for defined in found_in(text, self.DEFINED) if name.endswith(".h") else []:
                self.home[defined] = None if defined in self.home else name
        self.includes = {name: self._used(name, text) for name, text in self.texts.items()}

    def _used(self, name, text):
        folders = [*ARROWS, "treering"]
        found = [included for included in found_in(text, INCLUDE) if included.split("/")[0] in folders]
        homes = {self.home.get(declared) for declared in found_in(text, self.FORWARD)} - {None, name}
        return found + sorted(homes - set(found))

    @functools.cache
    def reached(self, name):
        """Headers that `name` uses, directly or not -> the one that it uses itself and that leads there."""
        result = {}
        for included in self.includes.get(name, []):
            unread = [included]
            while unread:
                header = unread.pop()
                if header in result or header == name:
                    continue
                result[header] = included
                unread += self.includes.get(header, [])
        return result


def check_module_includes(root):
    for folder in sorted(path for path in (root / "src").iterdir() if path.is_dir()):
        if folder.name not in ARROWS:
            yield f"src/{folder.name}: an unknown folder; add its arrows to {Path(__file__).name}"
    used = Sources(root)
    for name in used.texts:
        folder = name.split("/")[0]
        if "/" not in name:
            yield f"src/{name}: a file outside of the folders"
        if folder not in ARROWS:
            continue
        direct = DIRECT.get(folder, ARROWS[folder])
        for included, through in used.reached(name).items():
            if included == through and not allowed(included, folder, direct):
                yield f"src/{name}: uses {included}: {folder} may use {direct or 'core alone'}"
            elif included != through and not allowed(included, folder, ARROWS[folder]) and allowed(through, folder, direct):
                home = through.split("/")[0]
                if allowed(included, home, ARROWS.get(home, [])):  # else it is a violation of that folder
                    yield f"src/{name}: uses {included} through {through}: {folder} may use {ARROWS[folder] or 'core alone'}"


def check_transports(root):
    """A transport is known by its row in transport/table.cpp alone."""
    names = [path.parent.name for path in (root / "src/transport").glob("*/transport.h")]
    inside = re.compile(rf"transport/({'|'.join(names)})/")
    types = re.compile(rf"\b(?:{'|'.join(name.capitalize() for name in names if name != 'memory')})[A-Z]\w*")
    for path in sources(root / "src"):
        folder = path.relative_to(root / "src").parts[0]
        if folder == "transport":
            continue
        text = text_of(path)
        for included in found_in(text, INCLUDE):
            if inside.match(included):
                yield f"{path.relative_to(root)}: includes {included}: a transport is known by its row in transport/table.cpp alone"
        for found in sorted(set(found_in(text, types))):
            yield f"{path.relative_to(root)}: names {found}: a transport is known by its row in transport/table.cpp alone"


def check_collectives(root):
    """What a collective is like is asked of its row (algorithms/collective.h)."""
    asks = re.compile(r"[!=]=\s*Collective::k\w+|Collective::k\w+\s*[!=]=|case Collective::k\w+")
    for path in sources(root / "src"):
        if path.relative_to(root / "src").parts[0] != "algorithms":
            for found in found_in(text_of(path), asks):
                yield f"{path.relative_to(root)}: asks `{found}`: a collective is known by its row in algorithms/collective.cpp alone"


def check_folder_sizes(root):
    for folder in [path for path in (root / "src").rglob("*") if path.is_dir()]:
        count = sum(1 for path in folder.iterdir() if path.is_file() and path.name != "meson.build")
        if count > MAX_FILES and folder.name not in MANY_FILES:
            yield f"{folder.relative_to(root)}: {count} files; {MAX_FILES} at most: it is two folders"


def check_tool_includes(root):
    for path in [p for folder in ("tools", "python", "bench/peers") for p in sources(root / folder)]:
        arrows = TOOL_ARROWS.get(path.name, [])
        for included in found_in(text_of(path), INCLUDE):
            if included.split("/")[0] in ARROWS and not {included, included.split("/")[0]} & set(arrows):
                yield f"{path.relative_to(root)}: includes {included}: a tool may include the C API {arrows or 'alone'}"


def check_public_header(root):
    for path in sources(root / "include"):
        for included in found_in(text_of(path), INCLUDE):
            if included.split("/")[0] in ARROWS:
                yield f"{path.relative_to(root)}: includes {included}: a public header stands alone"


def check_lengths(root):
    for folder in CODE:
        for path in sources(root / folder):
            lines = text_of(path).count("\n")
            if lines > MAX_LINES:
                yield f"{path.relative_to(root)}: {lines} lines; {MAX_LINES} at most: it is two things"


COMMENT_OR_TEXT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*$", re.MULTILINE)
INITIALIZER = re.compile(r"(?<=[\w>])\{([^{};]*)\}")  # the formatter puts a space before all other braces
STATEMENT = re.compile(r"[^;{}]+")
RETURN = re.compile(r"\breturn\b([^;{}]*);")


NESTED = "has a ?: inside of another one"


def asks_twice(expression):
    """Whether a ?: has another one as a part, without parentheses between."""
    asked = [0]
    for sign in expression:
        if sign in "([":
            asked.append(0)
        elif sign in ")]" and len(asked) > 1:
            asked.pop()
        elif sign == ",":
            asked[-1] = 0
        elif sign == "?":
            asked[-1] += 1
            if asked[-1] > 1:
                return True
    return False


def has_comma_operator(expression):
    """Whether a comma stands outside of arguments, subscripts and template arguments."""
    shorter = None
    while shorter != expression:
        shorter, expression = expression, re.sub(r"(?<=\w)<[^<>();]*>", "", expression)
    depth = 0
    for sign in expression:
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            return True
    return False


@functools.cache
def unclear_expressions(source):
    """[(line, what is wrong there)]"""
    text = COMMENT_OR_TEXT.sub(lambda found: "\n" * found[0].count("\n"), source)
    text = DIRECTIVE.sub(lambda found: f";{found[0]};", text)
    without = None
    while without != text:
        without, text = text, INITIALIZER.sub(r"(\1)", text)
    faults = []
    for found in STATEMENT.finditer(text):
        if asks_twice(found[0]):
            faults.append((text.count("\n", 0, text.index("?", found.start())) + 1, NESTED))
    for found in RETURN.finditer(text):
        if has_comma_operator(found[1]):
            faults.append((text.count("\n", 0, found.start()) + 1, "returns by a comma operator"))
    return faults


def check_expressions(root):
    """An expression is understood at once: no ?: is a part of another one; outside of tests what is returned has no comma operator."""
    for path in [p for folder in CODE for p in sources(root / folder) if p.suffix != ".py"]:
        for line, what in unclear_expressions(text_of(path)):
            if what == NESTED or path.relative_to(root).parts[0] != "tests":
                yield f"{path.relative_to(root)}:{line}: {what}"


def check_names(root):
    """The largest and the least of what is allowed are kMax and kMin."""
    for path in [p for folder in CODE for p in sources(root / folder)]:
        for found in sorted(set(found_in(text_of(path), r"\bk(?:Most|Least)[A-Z]\w*"))):
            yield f"{path.relative_to(root)}: names {found}: limits begin with kMax or kMin"


UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace\n", re.DOTALL | re.MULTILINE)
HELD_THERE = (re.compile(r"^(?:constexpr|const)\s[^;={(]*?\b(\w+)\s*(?=[={\[])", re.MULTILINE),
              re.compile(r"^(?:class|struct|enum class)\s+(\w+)(?=[^;{=]*\{)", re.MULTILINE))
ALONE = ("src/shim", "src/device/cuda")  # folders whose files are compiled one by one in all builds


def check_unnamed_namespaces(root):
    """Builds with sanitizers compile several files of a folder as one (src/meson.build)."""
    for folder in [path for path in (root / "src").rglob("*") if path.is_dir() and not str(path.relative_to(root)).startswith(ALONE)]:
        homes = {}
        for path in sorted(folder.glob("*.cpp")):
            for name in {held for part in found_in(text_of(path), UNNAMED) for what in HELD_THERE for held in found_in(part, what)}:
                if homes.setdefault(name, path) != path:
                    yield f"{path.relative_to(root)}: has a {name} in its unnamed namespace, as {homes[name].name} does"


LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENSED = (*SOURCES, ".sh", ".bash", ".map", ".in", ".supp", "meson.build", "CMakeLists.txt", "packages")  # ends of names


def is_script(path):
    """Whether a file without a suffix begins with #!, so that its name does not tell what it is."""
    if path.suffix:
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def check_licence_lines(root):
    for folder in (*CODE, "packaging", "examples", "docs", ".ci"):
        for path in files_below(root / folder):
            if (path.name.endswith(LICENSED) or is_script(path)) and LICENCE not in text_of(path)[:1000]:
                yield f"{path.relative_to(root)}: has no line {LICENCE!r}"


def argument_of(text, begin):
    """What stands between the parenthesis before `begin` and the one that closes it."""
    depth, end = 1, begin
    while end < len(text) and depth > 0:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[begin:end - 1]


def seconds_of(argument, unit):
    """The largest number of a sleep's argument counts."""
    named = re.search(rf"\b({'|'.join(name for name in UNITS if len(name) > 3)})\b", argument)
    unit = UNITS[named[1]] if named else unit
    numbers = [(float(number.replace("'", "")), UNITS.get(suffix, unit)) for number, suffix in NUMBER.findall(argument)]
    read = [number * scale for number, scale in numbers if scale is not None]
    return max(read, default=UNREADABLE_SLEEP)


@functools.cache
def sleeps_in(text):
    return [(text.count("\n", 0, found.start()) + 1, seconds_of(argument_of(text, found.end()), unit))
            for call, unit in (SLEEPS.items() if "sleep" in text else ()) for found in re.finditer(call, text)]


def sleeps(root):
    """(file, line, seconds) of each literal sleep of tests/."""
    for path in sources(root / "tests"):
        if path.name != Path(__file__).name:
            yield from ((path.relative_to(root), line, seconds) for line, seconds in sleeps_in(text_of(path)))


def check_sleeps(root):
    found = sorted(sleeps(root), key=lambda sleep: -sleep[2])
    total = sum(seconds for _, _, seconds in found)
    if total > MAX_SLEEP:
        longest = ", ".join(f"{path}:{line} ({seconds:g} s)" for path, line, seconds in found[:5])
        yield (f"tests/: {total:.1f} s of sleeps; {MAX_SLEEP} s at most: wait for a condition (tests/support/waiting.h); "
               f"the longest: {longest}")


def violations(root):
    files_below.cache_clear()
    for check in (check_module_includes, check_transports, check_collectives, check_folder_sizes, check_tool_includes,
                  check_public_header, check_lengths, check_sleeps, check_expressions, check_names, check_unnamed_namespaces, check_words,
                  check_licence_lines, check_named_files, check_page_lines):
        yield from check(root)


# file, text that is put in front, words of the report
PLANTED = [
    ("src/transport/memory/fifo.h", '#include "executor/execution.h"\n', "uses executor/execution.h: transport"),
    ("src/topology/plan.cpp", '#include "algorithms/schedule.h"\n', "algorithms/schedule.h"),
    ("src/algorithms/ring.cpp", '#include "topology/topology.h"\n', "topology/topology.h"),
    ("src/executor/reduce/reduce.cpp", "#  include <failure/watch.h>\n", "uses failure/watch.h: executor"),
    ("src/failure/watch.cpp", "class Communicator;\n", "uses communicator/communicator.h: failure"),
    ("src/topology/plan.h", '#include "topology/switches.h"\n', "uses topology/switches.h through"),
    ("src/api/handles.cpp", '#include "executor/reduce/reduce.h"\n', "executor/reduce/reduce.h"),
    ("src/core/log.cpp", '#include "transport/connection.h"\n', "transport/connection.h"),
    ("src/peers/peer_table.cpp", '#include "transport/cma/cma.h"\n', "transport/cma/cma.h: a transport is known by its row"),
    ("src/communicator/creation.cpp", "struct TcpThing {};\n", "names TcpThing: a transport is known by its row"),
    ("src/gpu/devices.cpp", "bool f(Collective c) { return c == Collective::kBarrier; }\n", "is known by its row in algorithms"),
    ("tools/perf/main.cpp", '#include "executor/reduce/reduce.h"\n', "executor/reduce/reduce.h"),
    ("tools/schedule-dump.cpp", '#include "executor/reduce/reduce.h"\n', "executor/reduce/reduce.h"),
    ("include/treering/treering.h", '#include "core/types.h"\n', "core/types.h"),
    ("src/novel/thing.cpp", f"// {LICENCE}\n", "unknown folder"),
    ("src/thing.cpp", f"// {LICENCE}\n", "outside of the folders"),
    ("src/executor/reduce/reduce.h", f"// {LICENCE}\n" * MAX_LINES, "500 at most"),
    ("tests/support/ranks.h", "std::this_thread::sleep_for(std::chrono::milliseconds(16'000));\n", "ranks.h:1 (16 s)"),
    ("tests/support/ranks.h", "std::this_thread::sleep_for(ready ? 16s : 1ms);\n", "ranks.h:1 (16 s)"),
    ("tests/support/ranks.h", "usleep(static_cast<useconds_t>(16'000'000));\n", "ranks.h:1 (16 s)"),
    ("tests/support/ranks.h", "std::this_thread::sleep_for(kPause);\n" * (MAX_SLEEP + 1), "15 s at most"),
    ("src/core/log.cpp", "int f(int a) {\n  return a > 2 ? 3 : a > 1 ? 2 : 1;\n}\n", "log.cpp:2: has a ?: inside"),
    ("src/core/log.h", "struct Few {\n  int a = 1, b = a > 2\n     ? 3 : a > 1 ? 2 : 1;\n};\n", "log.h:3: has a ?: inside"),
    ("src/core/log.cpp", "P f(int a) {\n  return a > 2 ? P{3} : a > 1 ? P{2} : P{1};\n}\n", "log.cpp:2: has a ?: inside"),
    ("tools/perf/report.cpp", "#define F(a) a ? f(a ? 1 : 2, a ? 1 : a ? 2 : 3) : 4\n", "report.cpp:1: has a ?: inside"),
    ("tests/core/log_test.cpp", "int f(int a) {\n  return a > 2 ? 3 : a > 1 ? 2 : 1;\n}\n", "log_test.cpp:2: has a ?: inside"),
    ("src/core/log.cpp", "int f(int* a) {\n  return *a = 2, 1;\n}\n", "log.cpp:2: returns by a comma operator"),
    ("src/core/log.h", "// far from the first line\n" * 40, "log.h: has no line"),
    ("bench/netlab", "#!/usr/bin/env python3\n" + "# far from the first line\n" * 40, "netlab: has no line"),
    ("tools/novel/begin", "#!/bin/sh\n", "begin: has no line"),
    ("examples/novel/train.py", "print()\n", "train.py: has no line"),
    ("docs/examples/ranks.h", "// far from the first line\n" * 40, "ranks.h: has no line"),
    (".ci/run", "#!/bin/bash\n" + "# far from the first line\n" * 40, ".ci/run: has no line"),
    ("src/core/log.h", "inline constexpr int kMost" + "Lines = 3;\n", "begin with kMax or kMin"),
    ("src/gpu/devices.cpp", "namespace {\nconstexpr int kIdleTimeout = 3;\n}  // namespace\n", "has a kIdleTimeout in its unnamed"),
    ("src/topology/plan.cpp", "namespace {\nstruct FreeBitmap : Free {\n};\n}  // namespace\n", "has a FreeBitmap in its unnamed"),
    ("src/core/log.h", "// Of lines, the longest.\n", "log.h:1: 'Of'"),
    ("src/core/log.cpp", "// Lines are short. (Of\n// several, the first.)\n", "log.cpp:1: 'Of'"),
    ("src/core/config.cpp", 'const char* text = "It is said once. Of the ranks one says so.";\n', "config.cpp:1: 'Of'"),
    ("python/treering/run.py", '"""Of a process: its end."""\n', "run.py:1: 'Of'"),
    ("tests/launch/launch_test.py", "# It ends. Whoever waits is told.\n", "launch_test.py:1: 'Whoever'"),
    ("docs/tcp.md", "It is told to\nsomebody.\n", "tcp.md:2: 'somebody'"),
    ("README.md", "- Of each rank a line.\n", "README.md:1: 'Of'"),
    ("src/core/log.h", "// See core/no_log.h.\n", "log.h:1: names core/no_log.h"),
    ("docs/tcp.md", "In `src/no_tcp.h`.\n", "tcp.md:1: names src/no_tcp.h"),
    ("docs/tcp.md", "word " * 30 + "\n", "tcp.md:1: 150 characters"),
    ("tests/launch/launch_test.py", "time.sleep(16)\n", "launch_test.py:1 (16 s)"),
    ("tests/launch/launch_test.py", "from time import sleep\nsleep(16)\n", "launch_test.py:2 (16 s)"),
]


def self_test(root):
    """Each planted violation, alone, is reported, and nothing besides what was there before."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        for folder in (*CODE, "packaging", "examples", "docs", ".ci"):
            shutil.copytree(root / folder, copy / folder)
        shutil.copy(root / "README.md", copy)
        before = set(violations(copy))
        status = 0
        for name, text, words in PLANTED:
            path = copy / name
            original = path.read_text() if path.exists() else None
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + (original or ""))
            found = set(violations(copy)) - before
            if not found or not all(words in line for line in found):
                sys.exit(f"planted in {name}: {text[:60]!r}: expected reports with {words!r}, got {sorted(found)}")
            if status == 0:  # the same for each: the first one is enough
                status = subprocess.run([sys.executable, __file__, copy], stdout=subprocess.DEVNULL).returncode
                if status != 1:
                    sys.exit(f"planted in {name}: exit status {status}, not 1")
            if original is not None:
                path.write_text(original)
            elif path.parent.name == "src":
                path.unlink()
            else:
                shutil.rmtree(path.parent)
        assert set(violations(copy)) == before
        crowded = copy / "src" / "failure"
        for number in range(MAX_FILES):
            (crowded / f"more{number}.h").write_text(f"// {LICENCE}\n")
        found = set(violations(copy)) - before
        if len(found) != 1 or "files; 30 at most" not in next(iter(found)):
            sys.exit(f"planted {MAX_FILES} files in src/failure: got {sorted(found)}")
    print(f"{len(PLANTED)} planted violations found")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--self-test":
        return self_test(Path(arguments[1]))
    if len(arguments) != 1:
        sys.exit(__doc__)
    root = Path(arguments[0])
    print(f"sleeps of the tests: {sum(seconds for _, _, seconds in sleeps(root)):.1f} s of {MAX_SLEEP} s")
    found = list(violations(root))
    for violation in found:
        print(violation)
    if found:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
