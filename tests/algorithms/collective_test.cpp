// SPDX-License-Identifier: Apache-2.0
// What follows from the rows of the collectives.
#include "algorithms/collective.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string>

#include "core/types.h"

namespace treering {
namespace {

using Names = std::set<std::string>;

template <typename Is>
Names names_where(const Is& is) {
  Names names;
  for (const CollectiveInfo& info : collectives())
    if (is(info)) names.insert(info.name);
  return names;
}

TEST(Collective, TheRowsAreInTheOrderOfTheEnumerators) {
  for (const CollectiveInfo& info : collectives()) EXPECT_EQ(&info_of(info.collective), &info) << info.name;
}

TEST(Collective, WhatTheExecutorAsksFollowsFromTheRows) {
  EXPECT_EQ(names_where([](const auto& info) { return !info.has_data; }), Names{"barrier"});
  EXPECT_EQ(names_where([](const auto& info) { return info.combines_whole_buffers(); }), Names{"allreduce"});
  EXPECT_EQ(names_where([](const auto& info) { return info.gathers(); }), Names{"gather"});
  EXPECT_EQ(names_where([](const auto& info) { return info.scatters(); }), Names{"scatter"});
}

TEST(DataTypes, AnUnknownOneIsToldWithThoseThatAre) {
  const size_t count = std::size(kDataTypes);
  const std::string last = std::to_string(count - 1) + " (" + kDataTypes[count - 1].name + ")";
  EXPECT_EQ(unknown_type(static_cast<trDataType_t>(count)),
            "datatype is " + std::to_string(count) + "; known are 0 (int8) to " + last);
}

}  // namespace
}  // namespace treering
