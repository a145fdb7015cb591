# SPDX-License-Identifier: Apache-2.0
"""What was measured against what was asked for, and everything that a run leaves behind: tables, CSV, JSON, charts."""
import csv
import json
import statistics
import sys
import time

from comparison import points, report


class Record:
    """`tables` is {title: {library: {x: [time in us of each round]}}}, `rows` the verdicts, `links` what iperf3 measured."""

    def __init__(self, settings):
        self.settings = settings
        self.tables, self.units, self.rows, self.links, self.failures = {}, {}, [], {}, []
        self.wrong, self.other_work, self.stolen, self.printed = {}, {}, {}, set()
        self._round = None  # title, and the cores' time when it began

    def new_table(self, title, unit="bytes"):
        self.units[title] = unit
        return self.tables.setdefault(title, {})

    def add(self, table, library, x, result):
        """`result`: of Sessions.ask."""
        column = table.setdefault(library, {}).setdefault(x, [])
        if result is not None:
            column.append(result[0])
            self.wrong[library] = self.wrong.get(library, 0) + result[1]

    def note_other_work(self, title):
        """What the cores do while every library sleeps is work of other programs, and disturbs the figures. Waits for its end, for
        as long as the user's patience lasts."""
        self._note_stolen(title)
        until = time.monotonic() + self.settings.patience
        part = busy(0.3)
        while part > 0.1 and time.monotonic() < until:
            part = busy(1)
        self.other_work.setdefault(title, []).append(part)
        self._round = title, cores()

    def _note_stolen(self, title):
        """The part of the cores' time that a hypervisor gave to others in the round that ends here."""
        if self._round and self._round[0] == title:
            total, _, stolen = (after - before for after, before in zip(cores(), self._round[1]))
            self.stolen.setdefault(title, []).append(stolen / max(1, total))
        self._round = None

    def expect(self, where, what, value, target, least=True, note=""):
        met = value >= target if least else value <= target
        self.rows.append({"where": where, "what": what, "value": round(value, 4), "target": target,
                          "bound": "at least" if least else "at most", "met": met, "note": note})

    def report_failure(self, library, command, error):
        self.failures.append({"library": library, "command": command, "error": str(error)})
        print(f"FAILED: {library}: {command}: {error}", file=sys.stderr)

    def print_table(self, title, extra=None):
        """`extra`: {column title: {x: text}}."""
        table = self.tables[title]
        self.printed.add(title)
        bytes_on_x = self.units[title] == "bytes"
        report.print_table(title, table, sys.stdout, title="size" if bytes_on_x else self.units[title],
                           format_point=points.format_size if bytes_on_x else str)
        report.print_speedups(title, table, sys.stdout, format_point=points.format_size if bytes_on_x else str)
        for name, column in (extra or {}).items():
            print(f"{name:>10}: " + ", ".join(f"{points.format_size(x) if bytes_on_x else x} {text}"
                                             for x, text in column.items()))
        self._note_stolen(title)
        for what, parts in (("other work on the machine before each round", self.other_work.get(title)),
                            ("taken by the hypervisor in each round", self.stolen.get(title))):
            if parts:
                print(f"{what}: {', '.join(f'{100 * part:.0f} %' for part in parts)}")
        sys.stdout.flush()

    def print_unfinished(self):
        """After an interruption."""
        for title, table in self.tables.items():
            if title not in self.printed and table:
                self.print_table(title)

    def print_rows(self):
        if self.rows:
            print("\nTargets")
        for row in self.rows:
            verdict = "reached" if row["met"] else "MISSED"
            note = f" ({row['note']})" if row["note"] else ""
            print(f"{verdict:>8}  {row['where']}: {row['what']}: {row['value']:.3g}, {row['bound']} {row['target']:g}{note}")
        wrong = ", ".join(f"{library} {count}" for library, count in sorted(self.wrong.items()))
        print(f"wrong values: {wrong or 'nothing was measured'}")

    def write(self):
        settings = self.settings
        if settings.csv:
            with open(settings.csv, "w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["table", "library", "unit", "x", "round", "time_us"])
                for title, table in self.tables.items():
                    for library, column in table.items():
                        for x, times in column.items():
                            writer.writerows([title, library, self.units[title], x, turn, time]
                                             for turn, time in enumerate(times))
        if settings.json:
            shown = {key: value for key, value in vars(settings).items() if isinstance(value, (str, int, float, list))}
            with open(settings.json, "w") as file:
                json.dump({"settings": shown, "targets": self.rows, "links_mbit": self.links, "rounds_us": self.tables,
                           "wrong": self.wrong, "other_work": self.other_work, "stolen": self.stolen, "failures": self.failures}, file, indent=1)
                file.write("\n")
        if settings.chart:
            self._write_charts(settings.chart)

    def _write_charts(self, path):
        """One file for each unit: bytes, hosts."""
        units = list(dict.fromkeys(self.units[title] for title, table in self.tables.items() if table))
        for unit in units:
            tables = {title: table for title, table in self.tables.items() if table and self.units[title] == unit}
            name = path if len(units) == 1 else f"-{unit}.".join(path.rsplit(".", 1))
            shape = {} if unit == "bytes" else {"title": "a training step", "unit": unit, "format_x": "%g"}
            problem = report.write_chart(name, tables, **shape)
            if problem:
                print(problem, file=sys.stderr)


def cores():
    """All cores' time since the start: all of it, what was free for processes of ordinary priority, what a hypervisor took."""
    with open("/proc/stat") as file:
        user, nice, system, idle, wait, *others = (int(word) for word in file.readline().split()[1:])
    return user + nice + system + idle + wait + sum(others[:3]), nice + idle + wait, others[2]


def busy(seconds):
    """The part of all cores' time that went into processes of ordinary priority, into the kernel and to a hypervisor."""
    total, free, _ = cores()
    time.sleep(seconds)
    after_total, after_free, _ = cores()
    return 1 - (after_free - free) / max(1, after_total - total)


def median(table, library, x):
    times = table.get(library, {}).get(x)
    return statistics.median(times) if times else None


def least_ratio(table, library, least, most):
    """(best peer's time / the library's, x) where it is least, or None without a peer."""
    by_x = {x: ratio for x, ratio in report.ratios(table, library).items() if least <= x <= most}
    return min((ratio, x) for x, ratio in by_x.items()) if by_x else None
