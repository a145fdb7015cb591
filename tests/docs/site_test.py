#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the site as `ninja docs` does. The public headers must give no warning of Doxygen's, and no page the text of a table's markup.

usage: site_test.py DOXYFILE
"""

import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    with tempfile.TemporaryDirectory() as output:
        text = Path(sys.argv[1]).read_text() + f"\nOUTPUT_DIRECTORY = {output}\n"
        result = subprocess.run(["doxygen", "-"], input=text, capture_output=True, text=True, timeout=300)
        problems = [line for line in result.stderr.splitlines() if "/include/treering/" in line or "error:" in line]
        pages = (Path(output) / "site").glob("*.html")
        problems += [f"{page.name} shows the markup of a table" for page in pages if "&lt;td" in page.read_text()]
        if result.returncode != 0 or problems:
            sys.exit("\n".join(problems) or result.stderr[-2000:])
        page = (Path(output) / "site" / "communicator_8h.html").read_text()
        if "trCommInitRank" not in page or not (Path(output) / "site" / "index.html").exists():
            sys.exit("the site lacks its index, or trCommInitRank")


if __name__ == "__main__":
    main()
