#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a page as Doxygen reads Markdown: it pairs an apostrophe with a backtick of the same line, and knows no heading of another page.

usage: doxygen_filter.py PAGE
"""
import re
import sys
from pathlib import Path


def mend(line):
    if line.startswith(("    ", "```")):  # code
        return line
    parts = re.split(r"(`[^`]*`)", line)
    parts[::2] = [part.replace("'", "’") for part in parts[::2]]
    parts[1::2] = [f"`{part}`" if "'" in part else part for part in parts[1::2]]
    line = "".join(parts)
    line = re.sub(r"\]\(([^)#\s]*\.md)#[^)]*\)", r"](\1)", line)  # the page instead of its heading
    line = re.sub(r"\]\((?:[^)\s]*/)?([a-z_]+\.c)\)", r"](@ref \1)", line)
    return re.sub(r"\[([^\]]*)\]\(#[^)]*\)", r"\1", line)


print("\n".join(map(mend, Path(sys.argv[1]).read_text().split("\n"))), end="")
