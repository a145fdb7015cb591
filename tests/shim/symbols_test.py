#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The exported names of libnccl.so.2: NCCL 2.28.9's 52 functions and the 16 host functions of 2.29 and 2.30, weak, and a
strong p-alias of each; nothing else.

usage: symbols_test.py LIBRARY INCLUDE_FOLDER
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

LIBRARY, INCLUDE = Path(sys.argv[1]), Path(sys.argv[2])

FUNCTIONS = """
GetVersion GetUniqueId CommInitRank CommInitRankConfig CommInitRankScalable CommInitAll
CommFinalize CommDestroy CommAbort CommRevoke CommSplit CommShrink CommGetAsyncError CommCount CommCuDevice CommUserRank
AllReduce Broadcast Bcast Reduce AllGather ReduceScatter AlltoAll Gather Scatter Send Recv
MemAlloc MemFree CommRegister CommDeregister CommWindowRegister CommWindowDeregister
RedOpCreatePreMulSum RedOpDestroy GroupStart GroupEnd GroupSimulateEnd GetErrorString GetLastError ResetDebugInit
DevCommCreate DevCommDestroy TeamWorld TeamLsa TeamRail TeamRankToWorld TeamRankToLsa
LsaBarrierCreateRequirement GinBarrierCreateRequirement LLA2ACreateRequirement LLA2ACalcSlots
""".split()
NEWER = """
CommGetUniqueId CommGrow CommSuspend CommResume CommMemStats CommQueryProperties WinGetUserPtr PutSignal Signal WaitSignal
GetLsaDevicePointer GetPeerDevicePointer GetLsaMultimemDevicePointer GetMultimemDevicePointer
GinInboxA2ACreateRequirement GinOutboxCreateRequirement
""".split()
FUNCTIONS += NEWER


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


class Symbols(unittest.TestCase):
    def setUp(self):
        lines = run("nm", "-D", "--defined-only", LIBRARY).splitlines()
        self.kinds = {line.split()[-1]: line.split()[-2] for line in lines}
        self.addresses = {line.split()[-1]: line.split()[0] for line in lines}

    def test_names(self):
        self.assertEqual(len(FUNCTIONS), 52 + 16)
        expected = {"nccl" + f for f in FUNCTIONS} | {"pnccl" + f for f in FUNCTIONS}
        self.assertEqual(set(self.kinds), expected, "a version would show as name@VERSION")

    def test_weak_and_strong(self):
        for function in FUNCTIONS:
            self.assertEqual(self.kinds["nccl" + function], "W", function)
            self.assertEqual(self.kinds["pnccl" + function], "T", function)
            self.assertEqual(self.addresses["nccl" + function], self.addresses["pnccl" + function], function)

    def test_soname_and_no_versions(self):
        self.assertIn("[libnccl.so.2]", run("readelf", "-d", LIBRARY))
        self.assertNotIn(".gnu.version_d", run("readelf", "-SW", LIBRARY))

    def test_headers_declare_what_is_exported(self):
        text = "".join((INCLUDE / name).read_text() for name in ("nccl.h", "nccl_device.h"))
        declared = set(re.findall(r"NCCL_SHIM_FUNCTION\([^,]+, (\w+),", text)) - {"name"}
        self.assertEqual(declared, set(FUNCTIONS))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
