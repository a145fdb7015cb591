// SPDX-License-Identifier: Apache-2.0
// Log: lines as NCCL's users know them, on standard output or in NCCL_DEBUG_FILE:
//
//   host:pid:tid [device] NCCL INFO Channel 00/02 : 0 1 2 3
//
// NCCL_DEBUG sets the level (VERSION, WARN, INFO, ABORT, TRACE), NCCL_DEBUG_SUBSYS what of INFO is shown: a list of
// subsystems, all but those when it begins with `^`; INIT,BOOTSTRAP,ENV when it is not set.
#pragma once

#include <cstdint>
#include <string>

namespace treering::nccl {

enum class Level { kNone, kVersion, kWarn, kInfo, kAbort, kTrace };

enum Subsystem : uint32_t {
  kInit = 1u << 0,
  kColl = 1u << 1,
  kP2p = 1u << 2,
  kGraph = 1u << 5,
  kTuning = 1u << 6,
  kEnv = 1u << 7,
  kAlloc = 1u << 8,
  kReg = 1u << 13,
};

bool log_info_enabled(Subsystem subsystem);
// `device` is the rank's, or -1 where there is none.
void log_info(Subsystem subsystem, int device, const std::string& text);
void log_warn(const std::string& text);
// "NCCL version ...", once in a process, from level VERSION on.
void log_version();
// Reads the variables again at the next line.
void reset_log();

}  // namespace treering::nccl
