#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws speed-4-ranks.svg from the table "4 ranks, us a call" of docs/performance.md.

usage: speed.py          run in any folder; writes beside itself
"""
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parent / "performance.md").read_text(encoding="utf-8")
WIDTH, HEIGHT, LEFT, BASE, UNIT = 760, 330, 50, 258, 18  # UNIT: pixels for a factor of 1

STYLE = """<style>
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .small { font-size: 11px; fill: #57606a }
  .grid { stroke: #d8dee4 }
  .peer { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 5 3 }
  .peer-text { fill: #cf222e }
  .malloc { fill: #0969da }
  .mapped { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d }
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .grid { stroke: #30363d }
    .peer { stroke: #ff7b72 }
    .peer-text { fill: #ff7b72 }
    .malloc { fill: #58a6ff }
    .mapped { fill: #3fb950 }
  }
</style>"""


def rows():
    table = PAGE.split("4 ranks, us a call:", 1)[1]
    for line in table.split("\n"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 7 and re.fullmatch(r"\d+ (B|KiB|MiB)", cells[0]):
            yield cells[0], float(cells[5]), float(cells[6])
        elif line.startswith("More ranks"):
            return


def main():
    data = list(rows())
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
           "<!-- SPDX-License-Identifier: Apache-2.0 -->",
           "<title>Allreduce of 4 ranks on one machine: times as fast as the faster of Open MPI and MPICH, by size</title>",
           STYLE, f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>',
           '<text class="title" x="20" y="28">Allreduce, 4 ranks on one machine: times as fast as the faster MPI</text>',
           '<text class="small" x="20" y="46">float32 sum; Open MPI 4.1.4 and MPICH 4.0.2; 4 cores of a Xeon (Sapphire Rapids); '
           "2026-11-21</text>"]
    for factor in range(0, 10, 2):
        y = BASE - factor * UNIT
        out.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}"/>'
                   f'<text class="small" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{factor}</text>')
    step = (WIDTH - 20 - LEFT) / len(data)
    for i, (size, malloc, mapped) in enumerate(data):
        x = LEFT + i * step + step / 2
        for offset, name, value in ((-19, "malloc", malloc), (1, "mapped", mapped)):
            out.append(f'<rect class="{name}" x="{x + offset:.1f}" y="{BASE - value * UNIT:.1f}" width="18" '
                       f'height="{value * UNIT:.1f}"/>')
        out.append(f'<text class="small" x="{x:.1f}" y="{BASE + 16}" text-anchor="middle">{size}</text>')
    y = BASE - UNIT
    out += [f'<line class="peer" x1="{LEFT}" y1="{y}" x2="{WIDTH - 20}" y2="{y}"/>',
            f'<rect class="malloc" x="{LEFT}" y="292" width="12" height="12"/>'
            f'<text x="{LEFT + 18}" y="302">ordinary buffers (malloc)</text>',
            f'<rect class="mapped" x="{LEFT + 200}" y="292" width="12" height="12"/>'
            f'<text x="{LEFT + 218}" y="302">buffers of trMemAlloc</text>',
            f'<line class="peer" x1="{LEFT + 390}" y1="298" x2="{LEFT + 416}" y2="298"/>'
            f'<text class="peer-text" x="{LEFT + 424}" y="302">1 = the faster of the two MPIs</text>', "</svg>"]
    (HERE / "speed-4-ranks.svg").write_text("\n".join(out) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
