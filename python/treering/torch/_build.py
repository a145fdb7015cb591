# SPDX-License-Identifier: Apache-2.0
"""Compiles the backend against the PyTorch that is there, once, and loads it from the user's cache.

PyTorch's C++ interface changes from version to version, so a compiled backend is of one PyTorch. It lies in a folder of
the cache that is named by what it was made from: PyTorch, Python, the compiler's flags and the sources. A PyTorch that was
changed gets another folder. Processes that come at the same time wait for the first one, by a lock on a file that ends
with its process.
"""
import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile

NAME = "_treering_torch"
SOURCES = ("tensors.cpp", "reductions.cpp", "work.cpp", "link.cpp", "neighbours.cpp", "lanes.cpp", "backend.cpp", "collectives.cpp",
           "compression.cpp", "sparse.cpp", "movements.cpp", "point_to_point.cpp", "monitored_barrier.cpp", "module.cpp")
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "csrc")
LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libtreering.so.0")
HOW_TO_GET_A_COMPILER = "install one (on Debian: apt install g++), or name it in CXX"


class BuildError(RuntimeError):
    """The backend could not be compiled, or what was compiled could not be loaded."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "treering", "torch")


def flags():
    """The options of the compiler, but for the files."""
    import torch

    root = os.path.dirname(os.path.abspath(torch.__file__))
    includes = [os.path.join(root, "include"), os.path.join(root, "include", "torch", "csrc", "api", "include"),
                sysconfig.get_paths()["include"]]
    compiling = ["-std=c++20", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", f"-DTORCH_EXTENSION_NAME={NAME}",
                 f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{FOLDER}"]
    for include in includes:
        compiling += ["-isystem", include]
    lib = os.path.join(root, "lib")
    # The libraries are those that the process has loaded by then.
    linking = ["-shared", f"-L{lib}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10", LIBRARY]
    return compiling, linking


def files():
    """The sources and headers, by their names below FOLDER."""
    found = []
    for folder, _, names in os.walk(FOLDER):
        found += [os.path.relpath(os.path.join(folder, name), FOLDER) for name in names if name.endswith((".h", ".cpp"))]
    return sorted(found)


def key():
    """Names what a compiled backend depends on: the version of PyTorch in clear, the rest as a number."""
    import torch

    compiling, linking = flags()
    parts = [torch.__version__, str(torch.version.git_version), sys.version, platform.machine(), compiler(), *compiling, *linking]
    digest = hashlib.sha256("\0".join(parts).encode())
    for name in files():
        with open(os.path.join(FOLDER, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return f"{torch.__version__}-{digest.hexdigest()[:16]}"


def compiler():
    return os.environ.get("CXX") or "c++"


@contextlib.contextmanager
def locked(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_to(path):
    command = shlex.split(compiler())
    if shutil.which(command[0]) is None:
        raise BuildError(f"the treering backend is compiled when it is first used with a version of PyTorch, and there is "
                         f"no C++ compiler {command[0]}: {HOW_TO_GET_A_COMPILER}")
    compiling, linking = flags()
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
        # All sources as one: the headers of PyTorch take most of the time.
        unit = os.path.join(folder, "all.cpp")
        with open(unit, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{name}"\n' for name in SOURCES)
        made = os.path.join(folder, "made.so")
        done = subprocess.run([*command, *compiling, unit, "-o", made, *linking], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"the treering backend could not be compiled for this PyTorch: "
                             f"{shlex.join(done.args)} failed:\n{done.stderr[-4000:]}")
        os.replace(made, path)


def build(report=lambda text: None):
    """The path of the backend for this PyTorch; compiles it where it is not there yet."""
    folder = os.path.join(cache_folder(), key())
    path = os.path.join(folder, NAME + ".so")
    if os.path.exists(path):
        return path
    try:
        with locked(folder):
            if not os.path.exists(path):
                report(f"compiling the treering backend for PyTorch, once, to {path}")
                compile_to(path)
    except OSError as error:
        raise BuildError(f"the treering backend cannot be written to {folder}: {error}; set XDG_CACHE_HOME to a folder "
                         f"that can") from error
    return path


def load(report=lambda text: None):
    """The compiled module."""
    import treering  # noqa: F401 - loads libtreering.so.0, by its name, for the backend

    path = build(report)
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_loader(NAME, loader, origin=path)
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"the compiled treering backend does not load: {error}; remove {os.path.dirname(path)}, and it is "
                         f"compiled again") from error
    return module
