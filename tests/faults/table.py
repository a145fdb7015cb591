# SPDX-License-Identifier: Apache-2.0
"""The table of all runs: a row for each kind and transport, for each kind, and for each phase."""

import collections
import statistics

from judge import CLASSES

COLUMNS = ("kind", "transport or phase", "runs", "failed", *CLASSES, "with errors", "median s", "most s")


class Table:
    def __init__(self):
        self._rows = collections.defaultdict(lambda: {"runs": 0, "failed": 0, "seconds": [], **{name: 0 for name in CLASSES}})

    def add(self, scenario, findings, seconds):
        for key in ((scenario.kind, scenario.transport), (scenario.kind, "all"), ("all", scenario.phase), ("all", "")):
            row = self._rows[key]
            row["runs"] += 1
            row["failed"] += bool(findings)
            for kind in {finding.kind for finding in findings}:
                row[kind] += 1
            if seconds is not None:
                row["seconds"].append(seconds)

    def _lines(self):
        order = sorted(self._rows, key=lambda key: (key[0] == "all", key))
        for key in order:
            row = self._rows[key]
            seconds = row["seconds"]
            yield (*key, *(str(row[name] or "") for name in ("runs", "failed", *CLASSES)),
                   str(len(seconds)), f"{statistics.median(seconds):.2f}" if seconds else "", f"{max(seconds):.2f}" if seconds else "")

    def text(self):
        lines = [COLUMNS, *self._lines()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
        return "\n".join("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                                   for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines)

    def markdown(self):
        lines = [COLUMNS, tuple("---" for _ in COLUMNS), *self._lines()]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
