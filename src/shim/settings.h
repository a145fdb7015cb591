// SPDX-License-Identifier: Apache-2.0
// Settings: what a communicator is made with: an ncclConfig_t of any release's header, and the environment.
#pragma once

#include <string>

#include "core/status.h"
#include "shim/include/nccl.h"

namespace treering::nccl {

struct Settings {
  bool blocking = true;
  std::string name;
  std::string device_protocol;
  std::string algorithm;
  std::string transports;
  int channels = TR_CONFIG_UNDEF_INT;
  int staging_bytes = TR_CONFIG_UNDEF_INT;
  int timeout_ms = TR_CONFIG_UNDEF_INT;
  int device_blocks = TR_CONFIG_UNDEF_INT;
  int device = -1;  // the communicator's; -1: none

  // Refers to the strings of this object.
  trConfig_t config() const;
};

// A copy of the caller's struct in today's layout, checked. Fields that its header does not have are undefined, also
// where its padding overlaps them. `function` is for messages.
Status read_config(const char* function, const ncclConfig_t* user, ncclConfig_t* full);
// `user` may be NULL.
Status resolve_settings(const char* function, const ncclConfig_t* user, Settings* settings);

}  // namespace treering::nccl
