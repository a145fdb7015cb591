# SPDX-License-Identifier: Apache-2.0
"""What pages, comments and texts say: words, lines, names of files."""

import functools
import re

from reading import CODE, SOURCES, files_below, text_of

MAX_PAGE_LINE = 140  # of pages, as .editorconfig says; tables and programs may be longer
# In comments and texts: a sentence begins with its subject, and says who does a thing.
WORDS = {r"\bOf(?= |$)": 'a sentence begins with "Of": subject and verb come first',
         r"\b(?:[Ww]hoever|[Ss]omebody)\b": "say which thread, process or rank it is"}
WORDED = (*SOURCES, ".md", ".sh", "meson.build")  # ends of names


@functools.cache
def unclear_words(text):
    """[(line, word, what is wrong there)]"""
    return [(text.count("\n", 0, match.start()) + 1, match[0], what)
            for words, what in WORDS.items() for match in re.finditer(words, text, re.MULTILINE)]


def check_words(root):
    folders = ("src", "include", "python", "tools", "bench", "tests", "examples", "docs")
    for path in [*(path for folder in folders for path in files_below(root / folder)), *sorted(root.glob("*.md"))]:
        if not path.name.endswith(WORDED) or path.name == "source_rules.py":
            continue
        for line, word, what in unclear_words(text_of(path)):
            yield f"{path.relative_to(root)}:{line}: {word!r}: {what}"


# Files of others, and of programs that are made as an example.
OTHERS_FILES = ("cuda.h", "cuda_runtime.h", "foreach_target.h", "NAME.cpp", "sum.py")
NAMED_FILE = re.compile(r"(?:`|//[^\n]*?(?<![<\w/.-]))((?:[\w.-]+/)*[\w-]+\.(?:h|cpp|cu|py))\b")


def check_named_files(root):
    """Files that pages, and comments of src, name are there."""
    there = ["/" + str(path.relative_to(root)) for folder in (*CODE, "examples", "docs") for path in files_below(root / folder)]
    for path in [*files_below(root / "src"), *pages(root)]:
        for line, text in enumerate(text_of(path).split("\n"), 1):
            for name in NAMED_FILE.findall(text):
                if not name.endswith(OTHERS_FILES) and not any(known.endswith("/" + name.lstrip("./")) for known in there):
                    yield f"{path.relative_to(root)}:{line}: names {name}, which is not there"


def pages(root):
    return [*(path for path in files_below(root / "docs") if path.suffix == ".md"), *sorted(root.glob("*.md"))]


def check_page_lines(root):
    for path in pages(root):
        for line, text in enumerate([] if "Generated from" in text_of(path) else text_of(path).split("\n"), 1):
            if len(text) > MAX_PAGE_LINE and not text.startswith(("|", "    ")):
                yield f"{path.relative_to(root)}:{line}: {len(text)} characters; {MAX_PAGE_LINE} at most"
