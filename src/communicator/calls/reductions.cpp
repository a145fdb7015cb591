// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/reductions.h"

#include <fmt/format.h>

#include <atomic>

#include "core/names.h"

namespace treering {
namespace {

Status not_made(trRedOp_t op) {
  return {trInvalidArgument, fmt::format("op {} was not made on this communicator, or was destroyed", name_of(op))};
}

}  // namespace

trRedOp_t Reductions::add(std::shared_ptr<const Reduction> reduction) {
  constexpr uint32_t kValues = trRedOpForceInt - trRedOpFirstCreated;
  static std::atomic<uint32_t> made{0};  // of all communicators; begins anew after 2^31
  for (;;) {
    const auto op = static_cast<trRedOp_t>(trRedOpFirstCreated + made.fetch_add(1) % kValues);
    if (reductions_.try_emplace(op, std::move(reduction)).second) return op;
  }
}

Status Reductions::remove(trRedOp_t op) { return reductions_.erase(op) != 0 ? Status() : not_made(op); }

Status Reductions::find(trRedOp_t op, std::shared_ptr<const Reduction>* reduction) const {
  const auto found = reductions_.find(op);
  if (found == reductions_.end()) return not_made(op);
  *reduction = found->second;
  return {};
}

}  // namespace treering
