// SPDX-License-Identifier: Apache-2.0
// This process and others of this machine.
#pragma once

#include <sys/types.h>

#include <string>

#include "core/status.h"

namespace treering {

// One boot of one kernel; "" where /proc does not show it. Once known it stays, also where no descriptor is left to
// read it again.
std::string boot_id();

// That this process can open no connection: it is at its own limit, which is nothing that another one has done.
Status no_descriptor_left();

// Whether a process of this pid namespace has ended, also where its parent has not waited for it yet.
bool process_has_ended(pid_t pid);

}  // namespace treering
