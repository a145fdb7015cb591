// SPDX-License-Identifier: Apache-2.0
// Algorithms: what NCCL_ALGO and NCCL_PROTO say, `[function:][^]name,name;...`, in this library's terms.
#pragma once

#include <string>

#include "core/status.h"

namespace treering::nccl {

// *list: what TREERING_ALGO would have to be; empty when the cost model is to choose. Errors name the known words.
Status translate_algorithms(const std::string& variable, const std::string& text, std::string* list);
// NCCL_PROTO as TREERING_DEVICE_PROTOCOL has it.
Status translate_protocols(const std::string& variable, const std::string& text, std::string* list);

}  // namespace treering::nccl
