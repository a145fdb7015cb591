# SPDX-License-Identifier: Apache-2.0
"""Tables, ratios against the targets, CSV, JSON and the gnuplot chart of a comparison.

`rounds` is {ranks: {library: {bytes: [time in us of each round]}}}; a point's time is the median of its rounds. Where
something else than the number of ranks tells tables apart, a text stands in its place.
"""
import csv
import json
import shutil
import statistics
import subprocess

from . import points

BUFFER_KINDS = {"malloc": ("any", "malloc"), "mem_alloc": ("any", "shared"), "registered": ("any", "shared")}


def medians(of_library):
    return {size: statistics.median(times) for size, times in of_library.items() if times}


def is_ours(library):
    return library.startswith("treering/")


def best_peer(of_ranks):
    """{bytes: (time, library)} over the libraries that are not ours."""
    best = {}
    for library, of_library in of_ranks.items():
        if is_ours(library):
            continue
        for size, time in medians(of_library).items():
            if size not in best or time < best[size][0]:
                best[size] = (time, library)
    return best


def ratios(of_ranks, library, peer=None):
    """{bytes: best peer's time / the library's}; with `peer`, against that one alone."""
    best = best_peer({name: times for name, times in of_ranks.items() if peer in (None, name)})
    ours = medians(of_ranks[library])
    return {size: best[size][0] / ours[size] for size in sorted(ours) if size in best}


BEFORE = "-before"  # behind the name of the same library in an earlier build


def speedups(of_ranks, library):
    """{bytes: (by the best times, by the medians)}: the time of the earlier build / that of this one."""
    now, before = of_ranks.get(library, {}), of_ranks.get(library + BEFORE, {})
    return {size: (min(before[size]) / min(now[size]), statistics.median(before[size]) / statistics.median(now[size]))
            for size in sorted(now) if now[size] and before.get(size)}


def print_speedups(ranks, of_ranks, stream, format_point=points.format_size):
    for library in of_ranks:
        by_size = speedups(of_ranks, library)
        if not by_size:
            continue
        print(f"\n{title_of(ranks)}: {library}, time of the earlier build / of this one: best, median of the rounds", file=stream)
        print("  ".join(f"{format_point(size)} {best:.2f} {middle:.2f}" for size, (best, middle) in by_size.items()), file=stream)
        for name, column in zip(("best", "median"), zip(*by_size.values())):
            print(f"{name:>8}: geometric mean {points.geometric_mean(column):.3f}, least {min(column):.2f}", file=stream)


def title_of(ranks):
    return ranks if isinstance(ranks, str) else f"{ranks} ranks"


def print_table(ranks, of_ranks, stream, title="size", format_point=points.format_size):
    libraries = list(of_ranks)
    ours = [library for library in libraries if is_ours(library)]
    columns = [(library, medians(of_ranks[library])) for library in libraries]
    ratio_columns = [(library, ratios(of_ranks, library)) for library in ours]
    print(f"\n{title_of(ranks)}: time per call in us (largest over ranks, median of rounds); x = best peer / ours",
          file=stream)
    titles = libraries + ["x " + library.split("/")[1] for library in ours]
    print(f"{title:>10} " + " ".join(f"{name:>20}" for name in titles), file=stream)
    for size in sorted({size for _, times in columns for size in times}):
        cells = [f"{times[size]:20.2f}" if size in times else f"{'-':>20}" for _, times in columns]
        cells += [f"{values[size]:20.2f}" if size in values else f"{'-':>20}" for _, values in ratio_columns]
        print(f"{format_point(size):>10} " + " ".join(cells), file=stream)


def summary(rounds, collective="allreduce"):
    """Rows {ranks, buffers, range, value, target, met} of the ratios over the ranges that have targets."""
    rows = []
    for ranks, of_ranks in rounds.items():
        for library in filter(is_ours, of_ranks):
            if library.endswith(BEFORE):
                continue
            buffers = library.split("/")[1]
            for name, least, most, kind, targets in points.RANGES if collective == "allreduce" else points.OTHER_RANGES:
                if kind not in BUFFER_KINDS[buffers]:
                    continue
                by_size = ratios(of_ranks, library, "openmpi" if "openmpi" in name else None)
                values = [value for size, value in by_size.items() if least <= size <= most]
                if not values:
                    continue
                value = min(values) if "least" in name else points.geometric_mean(values)
                target = targets.get(ranks)
                rows.append({"ranks": ranks, "buffers": buffers, "range": name, "value": round(value, 3),
                             "target": target, "met": None if target is None else value >= target})
    return rows


def print_summary(rows, stream):
    if not rows:
        return
    print("\nratio = best peer's time / ours; geometric mean over the range, or the least", file=stream)
    print(f"{'ranks':>5} {'buffers':>12} {'range':>18} {'ratio':>8} {'target':>8}", file=stream)
    for row in rows:
        target = "-" if row["target"] is None else f"{row['target']:.2f}"
        verdict = {True: "reached", False: "MISSED", None: ""}[row["met"]]
        print(f"{row['ranks']:>5} {row['buffers']:>12} {row['range']:>18} {row['value']:8.2f} {target:>8} {verdict}",
              file=stream)


def write_csv(path, rounds):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ranks", "library", "bytes", "round", "time_us"])
        for ranks, of_ranks in rounds.items():
            for library, of_library in of_ranks.items():
                for size, times in of_library.items():
                    writer.writerows([ranks, library, size, i, time] for i, time in enumerate(times))


def write_json(path, rounds, settings):
    with open(path, "w") as file:
        json.dump({"settings": settings, "summary": summary(rounds), "rounds_us": rounds}, file, indent=1)
        file.write("\n")


def chart_script(path, rounds, title="allreduce, float32 sum", unit="bytes", format_x="%.0b%B"):
    """Two panels for each number of ranks: time per call, and time of each library over the best peer's."""
    blocks, panels = [], []
    for ranks, of_ranks in rounds.items():
        best = best_peer(of_ranks)
        curves, relative = [], []
        for library, of_library in of_ranks.items():
            if not medians(of_library):
                continue
            name = f"$d{len(blocks)}"
            rows = [f"{size} {time} {best[size][0] / time if size in best else 'NaN'}"
                    for size, time in sorted(medians(of_library).items())]
            blocks.append(f"{name} << EOD\n" + "\n".join(rows) + "\nEOD")
            style = f"with linespoints lw 2 title '{library}'"
            curves.append(f"{name} using 1:2 {style}")
            relative.append(f"{name} using 1:3 {style}")
        panels.append(f"set logscale y\nset title '{title_of(ranks)}'\nset ylabel 'time per call (us)'\nplot " +
                      ", \\\n  ".join(curves))
        # gnuplot refuses a panel without a point.
        panels.append(f"unset logscale y\nset title '{title_of(ranks)}'\nset ylabel 'best peer time / time'\nplot " +
                      ", \\\n  ".join(relative) if best else "set multiplot next")
    head = [f"set terminal svg size 1200,{450 * len(rounds)} font 'sans,11' noenhanced background '#ffffff'", f"set output '{path}'",
            "set logscale x 2", f"set format x '{format_x}'", f"set xlabel '{unit}'", "set grid", "set key top left",
            f"set multiplot layout {len(rounds)},2 title '{title}'"]
    return "\n".join(blocks + head + panels + ["unset multiplot"]) + "\n"


def write_chart(path, rounds, **labels):
    if not shutil.which("gnuplot"):
        return "gnuplot is not installed: no chart"
    done = subprocess.run(["gnuplot"], input=chart_script(path, rounds, **labels), text=True, capture_output=True)
    return None if done.returncode == 0 else "gnuplot: " + done.stderr.strip()
