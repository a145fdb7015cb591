// SPDX-License-Identifier: Apache-2.0
#include "failure/call_text.h"

#include <fmt/format.h>

#include "algorithms/collective.h"
#include "core/types.h"

namespace treering {
namespace {

// "allreduce of 1024 x float, sum", "alltoallv of float".
std::string call_text(const CallCopy& call) {
  if (call.collective >= kCollectiveCount) return "?";
  const CollectiveInfo& info = info_of(static_cast<Collective>(call.collective));
  if (!info.has_data) return info.name;
  const DataTypeInfo* type_row = find_type(static_cast<trDataType_t>(call.type));
  const OpInfo* op_row = find_op(static_cast<trRedOp_t>(call.op));
  const char* type = type_row != nullptr ? type_row->name : "?";
  std::string text = call.purpose == Purpose::kVariable ? fmt::format("{}v of {}", info.name, type)
                                                        : fmt::format("{} of {} x {}", info.name, call.count, type);
  if (info.reduces) text += fmt::format(", {}", op_row ? op_row->name : "an operation of the user");
  if (info.rooted) text += fmt::format(", root {}", call.root);
  return text;
}

}  // namespace

std::string text_of(const CallCopy& call) {
  switch (call.purpose) {
    case Purpose::kSplit:
      return "trCommSplit or trCommDup";
    case Purpose::kGrow:
      return "trCommGrow";
    case Purpose::kBoxes:
      return "trExchangeStart";
    case Purpose::kBoxPlan:
      return "trExchangeCreate";
    case Purpose::kSparse:
      return "trSparseAllReduce";
    case Purpose::kGpus:
      return "an exchange of the library about GPUs";
    case Purpose::kItself:
    case Purpose::kVariable:
      break;
  }
  std::string text = call_text(call);
  if (call.fused != 0) text += fmt::format(" (the sum of {} calls of a group, which are fused)", call.fused);
  return text;
}

bool in_transfer(const RankStatusSnapshot& shown) { return shown.operation == shown.completed; }

std::string place_of(const RankStatusSnapshot& shown) {
  if (in_transfer(shown)) return "a send or receive";
  return fmt::format("operation {} ({})", shown.operation, text_of(shown.call(shown.operation)));
}

std::string OwnCall::text() const { return text_of(status_->calls[number() % kCallsKept].load()); }

std::string OwnCall::place() const {
  if (is_creation()) return "the creation of the communicator";
  if (!is_counted()) return "a send or receive";
  return fmt::format("operation {} ({})", number(), text());
}

}  // namespace treering
