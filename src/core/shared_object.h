// SPDX-License-Identifier: Apache-2.0
// Shared objects that this library opens when they are first needed, so that it loads where they, or what they need,
// are missing.
#pragma once

#include <string>

namespace treering {

// Opens the path that `variable` of the environment names, else `file` beside this library, else `file` wherever the
// system looks. nullptr with the reason. It stays open.
void* open_shared_object(const char* file, const char* variable, std::string* why_not);

}  // namespace treering
