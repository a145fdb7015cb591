// SPDX-License-Identifier: Apache-2.0
// Shared objects that this library opens when they are first needed, so that it loads where they, or what they need,
// are missing.
#pragma once

#include <cstdint>
#include <string>

namespace treering {

// Whether it may lie elsewhere than beside this library: one of another build may be found there.
enum class Elsewhere : uint8_t { kNever, kWhereTheSystemLooks };

// Opens the path that `variable` of the environment names, else `file` beside this library, else elsewhere. nullptr with
// the reason. It stays open.
void* open_shared_object(const char* file, const char* variable, Elsewhere elsewhere, std::string* why_not);

}  // namespace treering
