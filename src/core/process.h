// SPDX-License-Identifier: Apache-2.0
// This process and others of this machine.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>

#include "core/status.h"

namespace treering {

// The name of this machine, "localhost" where it cannot be read; the short one ends before the first point. Inline,
// because the NCCL shim, which does not link the library's insides, has it in its log, too.
inline std::string host_name() {
  char name[256] = "localhost";
  (void)gethostname(name, sizeof name - 1);
  return name;
}
inline std::string short_host_name() {
  const std::string name = host_name();
  return name.substr(0, name.find('.'));
}

// The same text in all processes of a running machine, and in no other machine: the boot of its kernel. Where /proc does
// not show that, "name:" and its name, which must differ from those of other machines. A boot that was read once stays,
// also where no descriptor is left to read it again.
std::string machine_identity();

// That this process can open no connection: it is at its own limit, which is nothing that another one has done.
Status no_descriptor_left();

// Whether a process of this pid namespace has ended, also where its parent has not waited for it yet.
bool process_has_ended(pid_t pid);

}  // namespace treering
