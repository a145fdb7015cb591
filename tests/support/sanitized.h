// SPDX-License-Identifier: Apache-2.0
// Whether this build is instrumented by a sanitizer: everything takes several times as long, and more memory. A test that runs one
// thread and tries every size tries fewer there, as each kind of case is enough.
#pragma once

namespace treering::testing {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)
constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
#endif
constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace treering::testing
