// SPDX-License-Identifier: Apache-2.0
// Failures of the library as DistBackendError, in its words.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "treering/treering.h"

namespace treering::pytorch {

[[noreturn]] inline void raise(const std::string& text) { C10_THROW_ERROR(DistBackendError, text); }

inline std::exception_ptr failure(const std::string& text) {
  try {
    raise(text);
  } catch (...) {
    return std::current_exception();
  }
}

// The words of an exception of PyTorch, as of a store, without the stack.
inline std::string words_of(const std::exception& exception) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&exception);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : exception.what();
}

// The words for the last failure of `comm`, or of the calling thread where that is nullptr.
inline std::string words_for(trResult_t result, trComm_t comm) {
  const std::string words = trGetLastError(comm);
  return words.empty() ? trGetErrorString(result) : words;
}

}  // namespace treering::pytorch
