// Names of types and operations for messages; of a value that is none, its number.
#pragma once

#include <string>

#include "core/types.h"

namespace treering {

inline std::string name_of(trDataType_t type) {
  const DataTypeInfo* row = find_type(type);
  return row != nullptr ? row->name : std::to_string(static_cast<int>(type));
}

inline std::string name_of(trRedOp_t op) {
  const OpInfo* row = find_op(op);
  return row != nullptr ? row->name : std::to_string(static_cast<int>(op));
}

}  // namespace treering
