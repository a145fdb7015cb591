#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our nccl.h with NVIDIA's, where one is found, and runs a program compiled with NVIDIA's on our library.

usage: real_header_test.py INCLUDE_FOLDER LIBRARY_FOLDER CLIENT_SOURCE C_COMPILER...

Looks in $NCCL_HOME/include, /usr/include, /usr/local/include and nvidia/nccl/include of Python's site-packages; exit
status 77 (skipped) when there is none. If it is of another release than 2.28.9, only what both have is compared,
without the settings' layout and the number of results, which grow.
"""

import os
import re
import site
import subprocess
import sys
import tempfile
from pathlib import Path

OURS, LIBRARY, CLIENT = (Path(argument) for argument in sys.argv[1:4])
COMPILER = sys.argv[4:]

# What the real header includes, as far as it uses it.
CUDA_STUBS = {"cuda_runtime.h": "#include <stddef.h>\n#include <stdint.h>\n#define CUDART_VERSION 12090\ntypedef struct CUstream_st* cudaStream_t;\n",
              "cuda_fp16.h": "", "cuda_bf16.h": "", "cuda_fp8.h": ""}
STRUCTS = {
    "ncclConfig_t": "size magic version blocking cgaClusterSize minCTAs maxCTAs netName splitShare trafficClass commName "
                    "collnetEnable CTAPolicy shrinkShare nvlsCTAs nChannelsPerNetPeer nvlinkCentricSched",
    "ncclSimInfo_t": "size magic version estimatedTime",
    "ncclUniqueId": "internal",
}
MACROS = """NCCL_VERSION_CODE NCCL_UNIQUE_ID_BYTES NCCL_CONFIG_UNDEF_INT NCCL_SPLIT_NOCOLOR NCCL_WIN_DEFAULT
NCCL_WIN_COLL_SYMMETRIC NCCL_WIN_REQUIRED_ALIGNMENT NCCL_CTA_POLICY_DEFAULT NCCL_CTA_POLICY_EFFICIENCY
NCCL_CTA_POLICY_ZERO NCCL_SHRINK_DEFAULT NCCL_SHRINK_ABORT NCCL_REVOKE_DEFAULT""".split()


def candidates():
    if os.environ.get("NCCL_HOME"):
        yield Path(os.environ["NCCL_HOME"]) / "include"
    yield from (Path("/usr/include"), Path("/usr/local/include"))
    for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path]:
        yield Path(folder or ".") / "nvidia/nccl/include"


def find_real():
    for folder in candidates():
        header = folder / "nccl.h"
        if header.exists() and "Treering" not in header.read_text(errors="replace"):
            return folder
    return None


def preprocess(folder, stubs):
    return subprocess.run([*COMPILER, "-E", "-P", "-xc", f"-I{folder}", f"-I{stubs}", "-"], input="#include <nccl.h>\n",
                          check=True, capture_output=True, text=True).stdout


def normal(parameter):
    """A parameter's type: its name, the blanks and `(void)` do not count."""
    words = re.sub(r"\s*\*\s*", "* ", parameter).split()
    if len(words) > 1 and not words[-1].endswith("*"):
        words = words[:-1]
    return "".join(words) if words != ["void"] else ""


def functions(text):
    found = {}
    for kind, name, parameters in re.findall(r"([\w][\w\s*]*?)\b(p?nccl[A-Z]\w*)\s*\(([^()]*)\)\s*(?:__attribute__[^;]*)?;",
                                             re.sub(r"__attribute__\s*\(\(.*?\)\)\s*(?=[\w])", "", text)):
        kind = "".join(w for w in kind.split() if w not in ("extern",))
        found[name] = (kind, tuple(normal(p) for p in parameters.split(",")))
    return found


def enumerators(text):
    return re.findall(r"\b(nccl\w+)\s*=\s*[^,}]+", " ".join(re.findall(r"enum\s*\w*\s*\{([^}]*)\}", text)))


def values(folder, stubs, names, structs):
    lines = [f'printf("{n} %lld\\n", (long long){n});' for n in names]
    for struct, fields in structs.items():
        lines.append(f'printf("sizeof {struct} %zu\\n", sizeof({struct}));')
        lines += [f'printf("{struct}.{f} %zu %zu\\n", offsetof({struct}, {f}), sizeof((({struct}*)0)->{f}));'
                  for f in fields.split()]
    macros = "".join(f'#ifdef {m}\nprintf("{m} %lld\\n", (long long)({m}));\n#endif\n' for m in MACROS)
    program = "#include <nccl.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + \
        "\n" + macros + "ncclConfig_t c = NCCL_CONFIG_INITIALIZER; ncclSimInfo_t s = NCCL_SIM_INFO_INITIALIZER;\n" \
        'printf("magic %x %x\\n", c.magic, s.magic); return 0; }\n'
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([*COMPILER, "-xc", f"-I{folder}", f"-I{stubs}", "-", "-o", f"{work}/a"], input=program, check=True,
                       text=True)
        return dict(line.rsplit(" ", 1) if "." not in line else line.split(" ", 1)
                    for line in subprocess.run([f"{work}/a"], check=True, capture_output=True, text=True).stdout.splitlines())


def main():
    real = find_real()
    if real is None:
        print("skipped: no NCCL header of NVIDIA's found; set NCCL_HOME to compare with one")
        return 77
    with tempfile.TemporaryDirectory() as stubs:
        for name, text in CUDA_STUBS.items():
            (Path(stubs) / name).write_text(text)
        texts = [preprocess(folder, stubs) for folder in (OURS, real)]
        same_release = "22809" in values(real, stubs, [], {}).get("NCCL_VERSION_CODE", "")
        own, theirs = (functions(text) for text in texts)
        wrong = [f"{n}: ours {own[n]}, theirs {theirs[n]}" for n in sorted(own.keys() & theirs.keys()) if own[n] != theirs[n]]
        if same_release:
            wrong += [f"{n}: only in theirs" for n in sorted(theirs.keys() - own.keys())]
        names = sorted(set(enumerators(texts[0])) & set(enumerators(texts[1])))
        structs = STRUCTS if same_release else {k: v for k, v in STRUCTS.items() if k != "ncclConfig_t"}
        if "ncclWaitSignalDesc_t" in texts[1]:
            structs = {**structs, "ncclWaitSignalDesc_t": "opCnt peer sigIdx ctx"}
        ours, other = (values(folder, stubs, names, structs) for folder in (OURS, real))
        if not same_release:
            other.pop("NCCL_VERSION_CODE")
            other.pop("ncclNumResults", None)
        wrong += [f"{k}: ours {ours[k]}, theirs {other[k]}" for k in sorted(ours.keys() & other.keys()) if ours[k] != other[k]]
        if len(own) < 80 or len(names) < 30 or len(ours) < 40:
            wrong.append(f"too little was compared: {len(own)} functions, {len(names)} enumerators, {len(ours)} values")
        program = Path(stubs) / "client"
        subprocess.run([*COMPILER, CLIENT, "-o", program, f"-I{real}", f"-I{stubs}", f"-L{LIBRARY}", "-lnccl"], check=True)
        ran = subprocess.run([program, "3", "1000"], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "LD_LIBRARY_PATH": f"{LIBRARY}:{LIBRARY.parent}"})
        if ran.stdout != "sum 3 3\n":
            wrong.append(f"a program compiled with their header: {ran}")
    print("\n".join(wrong) or f"{len(own)} functions, {len(names)} enumerators, {len(ours)} values as in {real}/nccl.h")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
