// SPDX-License-Identifier: Apache-2.0
// Status: the outcome of an operation that can fail for a reason outside the code.
//
// A code of the C API and a message that names the value at fault and what to do about it. No exception is thrown
// for such an outcome, and the caller that decides what to do logs it, once.
#pragma once

#include <string>
#include <utility>

#include "treering/treering.h"

namespace treering {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(trResult_t code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == trSuccess; }
  trResult_t code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  trResult_t code_ = trSuccess;
  std::string message_;
};

// Two reasons as one. A timeout wins: what was late may work later.
inline Status joined(const Status& first, const Status& more) {
  if (first.ok()) return more;
  return {more.code() == trTimeout ? trTimeout : first.code(), first.message() + "; " + more.message()};
}

// Short enough that it takes no memory itself.
inline Status out_of_memory() { return {trSystemError, "out of memory"}; }

#define TR_RETURN_IF_ERROR(expression)                                            \
  do {                                                                            \
    if (::treering::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

}  // namespace treering
