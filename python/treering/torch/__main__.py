# SPDX-License-Identifier: Apache-2.0
"""python -m treering.torch build: compiles the backend for the PyTorch that is there, before it is used."""
import argparse
import sys


def main():
    parser = argparse.ArgumentParser(prog="python -m treering.torch", description=__doc__)
    parser.add_argument("command", choices=["build"], help="compile the backend, and print where it lies")
    parser.parse_args()
    from . import BuildError, _build, load

    try:
        load()
    except BuildError as error:
        sys.exit(f"treering.torch: {error}")
    print(_build.build())


if __name__ == "__main__":
    main()
