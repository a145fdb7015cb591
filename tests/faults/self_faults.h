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
bool forbid_descriptors();
bool forbid_memory();
void allow_all();

}  // namespace faults
