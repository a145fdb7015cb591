// SPDX-License-Identifier: Apache-2.0
#include "support/descriptor_limit_objects.h"

#include <climits>
#include <memory>

namespace treering::testing {
namespace {

struct Base {
  virtual ~Base() = default;
  virtual int number() { return 1; }
};

struct Derived : Base {
  int number() override { return 2; }
};

struct Stranger {
  virtual ~Stranger() = default;
  virtual int number() { return 3; }
};

// Not inlined: the compiler must not know what the object is.
[[gnu::noipa]] int number_of(Base* base) { return base->number(); }
[[gnu::noipa]] int sum_of(int a, int b) { return a + b; }

}  // namespace

int call_right_object() {
  Derived derived;
  return number_of(&derived);
}

int call_wrong_object() {
  Stranger stranger;
  return number_of(reinterpret_cast<Base*>(&stranger));
}

int overflow() { return sum_of(INT_MAX, 1); }

}  // namespace treering::testing
