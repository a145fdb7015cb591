// SPDX-License-Identifier: Apache-2.0
// Transports in shared objects of their own, so that this library needs none of the libraries that they need.
//
//   open_module("verbs", setup) ---> libtreering-verbs.so.0 ---> its transport, or one that says why there is none
//
// A module is of the same build as the library: it sees the same types, and calls nothing of the library but what its
// setup gives it.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>

#include "transport/transport.h"

namespace treering {

// The one function of a module: nullptr where the transport cannot be had, with the reason in `why_not`. `build` is
// module_build() of the caller, which must be the module's own.
using OpenTransportModule = Transport* (*)(const char* build, const TransportSetup& setup, std::string* why_not);
inline constexpr const char* kOpenTransportModule = "treering_open_transport";
// Raised with each change of what modules and library share: Config, and what src/transport has for all transports.
inline constexpr int kModuleInterface = 2;
// Changes with the version, that number, the compiler, sanitizers and the sizes of what is shared.
inline std::string module_build() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kSanitized = true;
#else
  constexpr bool kSanitized = false;
#endif
  return fmt::format(TREERING_VERSION_STRING ".{} by " __VERSION__ " {:x} {:x} {:x} {:x} {:x} {}", kModuleInterface,
                     sizeof(TransportSetup), sizeof(Config), sizeof(WaitSet), sizeof(Message), sizeof(Region),
                     kSanitized);
}

// The transport of that name. Where it cannot be had: one that proves no peer, and says why.
std::unique_ptr<Transport> open_module(const std::string& name, const TransportSetup& setup);

}  // namespace treering
