// SPDX-License-Identifier: Apache-2.0
// Settings of a communicator from keyword arguments: those of trConfig_t, by its names.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <string>

#include "treering/treering.h"

namespace treering::python {

class Config {
 public:
  // Raises where a setting is unknown or of a wrong type. `call` is the call that they were given to.
  Config(const char* call, const nanobind::dict& settings);
  const trConfig_t* get() const { return &config_; }

 private:
  void set(const char* call, const std::string& name, nanobind::handle value);
  trConfig_t config_ = TR_CONFIG_INITIALIZER;
  std::deque<std::string> texts_;  // what the pointers in it refer to
};

}  // namespace treering::python
