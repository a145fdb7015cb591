# SPDX-License-Identifier: Apache-2.0
"""--version of the tools of bench/. They run from the sources, so the version is that of meson.build."""
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))


def project_version():
    with open(os.path.join(HERE, "..", "..", "..", "meson.build"), encoding="utf-8") as file:
        return re.search(r"^\s*version: '([^']+)'", file.read(), re.MULTILINE)[1]


def add_option(parser):
    """The tool's name and the version, as the compiled tools print them."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {project_version()}")
