// SPDX-License-Identifier: Apache-2.0
// Variables: every NCCL_* variable that is known, in one table, and what is made of it.
//
// A row gives a variable its values, its documentation and, where this library has something of the same meaning, the
// function that applies it; the others are accepted and named in the log. docs/nccl-variables.md is generated from the
// rows and a test compares the two. Values come from the environment, then from NCCL_CONF_FILE or ~/.nccl.conf, then
// from /etc/nccl.conf.
#pragma once

#include <climits>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace treering::nccl {

// What variables and an ncclConfig_t ask for, in NCCL's terms.
struct Request {
  int blocking = INT_MIN;
  int min_channels = INT_MIN;
  int max_channels = INT_MIN;
  int buffer_bytes = INT_MIN;
  bool without_p2p = false;
  bool without_shm = false;
  std::string algorithm;  // as TREERING_ALGO has it; empty: chosen
  std::string protocol;   // as TREERING_DEVICE_PROTOCOL has it
};

struct VariableRow {
  const char* name;  // without NCCL_
  const char* values;
  const char* documentation;
  // nullptr: accepted without effect. `name` is the whole name.
  Status (*apply)(const std::string& name, const std::string& value, Request* request);
  // Read elsewhere: by the log, by ncclGetUniqueId().
  bool read_elsewhere = false;
};

std::span<const VariableRow> variable_table();

// The value of a variable by its whole name; empty when it is not set.
std::string variable(const std::string& name);
// Applies all variables that are set; the log gets a line for each, once in a process.
Status apply_variables(Request* request);

// Those of the network, and of access between GPUs, become settings of the process, which the library reads from
// TREERING_* when the first communicator or unique id is made: sets the ones that the user has not set. To be called
// before either.
void hand_on_variables();

// The parts of a list, without the empty ones and the blanks around them.
std::vector<std::string> split_list(const std::string& text, char separator);

// docs/nccl-variables.md
std::string variables_markdown();

}  // namespace treering::nccl
