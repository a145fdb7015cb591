// SPDX-License-Identifier: Apache-2.0
// What UndefinedBehaviorSanitizer looks at in descriptor_limit_test, compiled with all of its checks, which the tests' own code is not.
#pragma once

namespace treering::testing {

// Calls a function of an object whose type no check has seen yet; the same type at every call.
int call_right_object();
// The same, but the object is of another type.
int call_wrong_object();
// The sum of two numbers, which overflows.
int overflow();

}  // namespace treering::testing
