# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel and initramfs: made once from Debian's kernel package, and kept in a cache folder.

    ${RDMALAB_CACHE:-${XDG_CACHE_HOME:-~/.cache}/treering-rdmalab}/
        lock
        linux-image-VERSION-amd64_REVISION-RECIPE/     RECIPE: a hash of what the initramfs is made of
            vmlinux  initramfs.gz

The package is unpacked, not installed. A folder appears under its name when it is complete.
"""

import contextlib
import fcntl
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

META_PACKAGE = "linux-image-amd64"
# With those that they need, these are all modules of the guest, which finds none of its kernel's modules at run time.
MODULES = ("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay", "crc32_generic", "crc32c_generic", "veth", "bridge",
           "sch_netem", "ib_uverbs", "rdma_ucm", "rdma_rxe")
DAY = 24 * 3600
INIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "init")


class Unavailable(Exception):
    """The machine cannot run an RdmaLab; the text says why."""


def _run(argv, folder=None, text=True, given=None):
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(argv, cwd=folder, env=environment, input=given, stdin=None if given else subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise Unavailable(f"{' '.join(argv)}: {reason}") from None
    if done.returncode != 0:
        errors = done.stderr if text else done.stderr.decode(errors="replace")
        raise Unavailable(f"{' '.join(argv)}: {errors.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def cache_folder():
    own = os.environ.get("RDMALAB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(own or os.path.join(base, "treering-rdmalab"))


def busybox():
    """A busybox that runs without any other file."""
    path = shutil.which("busybox", path=os.environ.get("PATH", "") + ":/bin:/usr/bin")
    if path is None:
        raise Unavailable('the program "busybox" is not installed (package busybox-static; list "test" of tools/packages)')
    with open(path, "rb") as file:
        if b"/ld-linux" in file.read(4096):
            raise Unavailable(f'{path} needs shared libraries (package busybox-static; list "test" of tools/packages)')
    return path


def _recipe(init, box):
    parts = hashlib.sha256(b"1")
    for part in (init, box):
        parts.update(pathlib.Path(part).read_bytes())
    parts.update(" ".join(MODULES).encode())
    return parts.hexdigest()[:8]


def _wanted_package():
    """The newest kernel's package, and the name of its file without the ending."""
    depends = _run(["apt-cache", "depends", META_PACKAGE])
    found = re.search(r"Depends: (linux-image-\S+)", depends)
    if not found:
        raise Unavailable(f"apt knows no package that {META_PACKAGE} depends on (try apt-get update)")
    where = _run(["apt-get", "download", "--print-uris", found[1]]).split()
    if len(where) < 2 or not where[1].endswith(".deb"):
        raise Unavailable(f"apt knows no address of {found[1]} (try apt-get update)")
    return found[1], where[1][:-len(".deb")]


def prepare():
    """The paths of kernel and initramfs."""
    box = busybox()
    recipe, cache = _recipe(INIT, box), cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "lock", "w")
    except OSError as reason:
        raise Unavailable(f"no cache folder for the guest's kernel (RDMALAB_CACHE names another): {reason}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = _newest(cache, recipe)
        # Apt is asked once a day, and a machine that has lost its network goes on with what it has.
        if folder is None or time.time() - folder.stat().st_mtime > DAY:
            try:
                package, name = _wanted_package()
                wanted = cache / f"{name}-{recipe}"
                if not wanted.exists():
                    _make(package, wanted, box)
                    _remove_old(cache)
                folder = wanted
            except Unavailable:
                if folder is None:
                    raise
            os.utime(folder)
    return folder / "vmlinux", folder / "initramfs.gz"


def _newest(cache, recipe):
    folders = sorted(cache.glob(f"linux-image-*-{recipe}"), key=lambda folder: folder.stat().st_mtime)
    return folders[-1] if folders else None


def _remove_old(cache):
    # One that was asked for lately may be what another clone of the sources uses. Others are what an interrupted test left.
    for folder in [*cache.glob("linux-image-*"), *cache.glob("making-*")]:
        if time.time() - folder.stat().st_mtime > 30 * DAY:
            shutil.rmtree(folder, ignore_errors=True)


def _make(package, target, box):
    with tempfile.TemporaryDirectory(prefix="making-", dir=target.parent) as temporary:
        folder = pathlib.Path(temporary)
        _run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package], folder)
        archives = list(folder.glob("*.deb"))
        if not archives:
            raise Unavailable(f"apt-get download {package} left no file")
        _run(["dpkg-deb", "-x", str(archives[0]), "unpacked"], folder)
        image = next((folder / "unpacked/boot").glob("vmlinuz-*"))
        done = folder / "done"
        done.mkdir()
        (done / "vmlinux").write_bytes(_uncompressed(image.read_bytes()))
        _make_initramfs(folder, image.name[len("vmlinuz-"):], box, done / "initramfs.gz")
        done.rename(target)


def _uncompressed(image):
    # Emulated processors take 4 s for this. A kernel that is packed in another way boots as it is.
    with contextlib.suppress(ImportError, EOFError, ValueError):
        import lzma
        with contextlib.suppress(lzma.LZMAError):
            kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[image.index(b"\xfd7zXZ\0"):])
            if kernel.startswith(b"\x7fELF"):
                return kernel
    return image


def _make_initramfs(folder, version, box, target):
    root = folder / "initramfs"
    for name in ("bin", "modules", "proc", "lower", "upper", "new", "dev"):
        (root / name).mkdir(parents=True)
    shutil.copy(box, root / "bin/busybox")
    shutil.copy(INIT, root / "init")
    (root / "init").chmod(0o755)
    unpacked = folder / "unpacked"
    _run([box, "depmod", "-b", str(unpacked), version])
    modules = unpacked / "lib/modules" / version
    order = _load_order((modules / "modules.dep").read_text(), (modules / "modules.builtin").read_text())
    for path in order:
        shutil.copy(modules / path, root / "modules")
    (root / "modules/order").write_text("".join(f"{pathlib.Path(path).name}\n" for path in order))
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    archive = _run([box, "cpio", "-o", "-H", "newc"], root, text=False, given=names.encode())
    target.write_bytes(gzip.compress(archive, 1))


def _load_order(dependencies, builtin):
    """The files of MODULES and of those that they need, each behind what it needs."""
    needs = dict(line.split(":", 1) for line in dependencies.splitlines() if ":" in line)
    by_name = {_module_name(path): path for path in needs}
    known = {_module_name(path) for path in builtin.split()}
    order = []

    def add(path):
        if path not in order:
            for other in needs.get(path, "").split():
                add(other)
            order.append(path)

    for name in MODULES:
        if name in by_name:
            add(by_name[name])
        elif name not in known:
            raise Unavailable(f"the kernel package has no module {name}")
    return order


def _module_name(path):
    return pathlib.Path(path).name.split(".")[0].replace("-", "_")
