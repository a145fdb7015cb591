// SPDX-License-Identifier: Apache-2.0
#include "communicator/calls/call_selection.h"

#include <fmt/format.h>

#include "core/names.h"
#include "core/types.h"

namespace treering {

CallSelection::CallSelection(const Config& config, uint32_t ranks, ScheduleCache* schedules)
    : schedules_(schedules), ranks_(ranks), deterministic_(config.deterministic) {
  if (config.wire.empty()) return;
  wire_ = std::make_shared<Compression>();
  wire_->wire = find_wire_type(config.wire)->type;
}

bool CallSelection::may_be_compressed(const Operation& operation) {
  return info_of(operation.collective).combines_whole_buffers() && operation.compression == nullptr &&
         operation.type == trFloat32 && (operation.op == trSum || operation.op == trAvg);
}

SelectionQuery CallSelection::query(Collective collective, size_t bytes, trDataType_t type) const {
  Operation operation;
  operation.collective = collective;
  operation.type = type;
  apply_settings(&operation);
  const bool halved = operation.compression != nullptr && ranks_ > 1 && find_type(wire_->wire)->size == 2;
  return {collective, halved ? bytes / 2 : bytes, constraints_of(operation)};
}

Status CallSelection::explain(const SelectionQuery& query, const std::string& transports, std::string* text) const {
  TR_RETURN_IF_ERROR(schedules_->explain(query.collective, query.bytes, query.constraints, text));
  *text += fmt::format("\ntransport between the ranks: {}\n", transports);
  if (query.compressed())
    *text = fmt::format("float that travels as {}, chosen as {} would be\n{}", find_type(wire_->wire)->name,
                        format_bytes(query.bytes), *text);
  return {};
}

}  // namespace treering
