// SPDX-License-Identifier: Apache-2.0
// What a process of ranks does to itself when the driver says so.
#pragma once

#include <string>

namespace faults {

// Closes, shuts down or resets every socket of the process, behind the library's back; their number.
int close_sockets();
int shut_down_sockets();
int reset_sockets();

// The process gets no descriptor, or no mapping, more.
// A child that outlives this process, as a data loader may; it ends by itself.
bool leave_child();
bool forbid_descriptors();
bool forbid_memory();
void allow_all();

}  // namespace faults
