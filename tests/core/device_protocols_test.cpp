// SPDX-License-Identifier: Apache-2.0
#include "core/device_protocols.h"

#include <gtest/gtest.h>

namespace treering {
namespace {

TEST(DeviceProtocols, APartCountsForItsCollectiveInAnySpelling) {
  for (const char* name : {"reduce-scatter", "reduce_scatter", "ReduceScatter"}) {
    const std::string text = "ll;" + std::string(name) + ":^ll";
    EXPECT_EQ(allowed_protocols(text, "reduce-scatter"), kAllowLl128 | kAllowSimple) << name;
    EXPECT_EQ(allowed_protocols(text, "reduce"), uint32_t{kAllowLl}) << name;
  }
  EXPECT_EQ(allowed_protocols("", "reduce"), uint32_t{kAllowAllProtocols});
}

}  // namespace
}  // namespace treering
