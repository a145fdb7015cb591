// SPDX-License-Identifier: Apache-2.0
// The table of transports. The order is that of preference: a pair of ranks uses the first that works between both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace treering {

// A set of transports: bit i is row i of the table.
using TransportSet = uint32_t;
inline constexpr size_t kMaxTransports = 31;

const std::vector<TransportRow>& transports();
// Another transport, after those that are there; before the first communicator of the process.
void add_transport(const TransportRow& row);

// Those with a property: `(row.*property)`.
TransportSet transports_with(bool TransportRow::*property);
TransportSet transports_of(Scope scope);
// The one of a set that is preferred, as a set; 0: none.
TransportSet preferred(TransportSet set);
// The row of a set of one.
const TransportRow& row_of(TransportSet one);

// Which transports the option allows; an unknown word is an error that lists the known ones.
Status parse_transports(const std::string& text, TransportSet* allowed);
// "shm+tcp": the short names; "none" of the empty set.
std::string transports_text(TransportSet set);
// "in-process 1, shared-memory 1": names and wire versions, which the ranks compare.
std::string wire_versions(TransportSet set);

}  // namespace treering
