#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The runner for compute-sanitizer, with a stand-in for that tool.

usage: sanitize_test.py SANITIZE_PY
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SANITIZE = sys.argv[1]


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def run(program, **environment):
    ran = subprocess.run([sys.executable, SANITIZE, "racecheck", program], env={**os.environ, **environment},
                         capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout + ran.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = script(folder / "program", '[ "$1" = --device ] || echo "short: $TREERING_GPU_SHORT"\n')
        without_gpu = script(folder / "without", "echo no GPU; exit 77\n")
        passes = script(folder / "passes", 'echo "$@"; for last; do :; done; exec "$last"\n')
        finds = script(folder / "finds", "exit 99\n")

        status, text = run(program, TREERING_COMPUTE_SANITIZER=passes)
        assert status == 0 and "--tool racecheck" in text and "short: 1" in text, (status, text)
        status, text = run(program, TREERING_COMPUTE_SANITIZER=finds)
        assert status == 99 and "racecheck found errors" in text, (status, text)
        status, text = run(without_gpu, TREERING_COMPUTE_SANITIZER=passes)
        assert status == 77 and "no GPU" in text, (status, text)
        if not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
            status, text = run(program, PATH=str(folder), TREERING_COMPUTE_SANITIZER="", CUDA_HOME="/nonexistent")
            assert status == 77 and "racecheck not run: compute-sanitizer was not found" in text, (status, text)
    print("the runner skips, passes and fails as it should")


if __name__ == "__main__":
    main()
