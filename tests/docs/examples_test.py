#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public function is called by a program in docs/examples, and no program calls what does not exist.

usage: examples_test.py ROOT
"""

import re
import sys
from pathlib import Path

DECLARED = re.compile(r"TR_API\s+[\w\s*]*?\b(tr[A-Z]\w*)\(")
CALLED = re.compile(r"\b(tr[A-Z]\w*)\(")


def main(root):
    headers = "".join(path.read_text() for path in (root / "include/treering").glob("*.h"))
    examples = "".join(path.read_text() for path in (root / "docs/examples").glob("*.[ch]"))
    declared, called = set(DECLARED.findall(headers)), set(CALLED.findall(examples))
    if len(declared) < 50:
        sys.exit(f"only {len(declared)} functions found in the headers: {sorted(declared)}")
    without, unknown = sorted(declared - called), sorted(called - declared)
    if without:
        sys.exit(f"no program in docs/examples calls {', '.join(without)}")
    if unknown:
        sys.exit(f"docs/examples call what no header declares: {', '.join(unknown)}")
    print(f"{len(declared)} functions, each called by an example")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
