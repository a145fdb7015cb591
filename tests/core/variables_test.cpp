// SPDX-License-Identifier: Apache-2.0
#include "core/variables.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"

namespace treering {
namespace {

TEST(Variables, UnknownOnesAreNamedWithWhatWasMeant) {
  const char* const environment[] = {"PATH=/bin",
                                     "TREERING_TIMEOT=5",
                                     "TREERING_TIMEOUT=5",
                                     "TREERING_CHANELS=2",
                                     "TREERING_DEBUG=INFO",
                                     "TREERING_RANKS=2",
                                     "TREERING_HOME=/opt/treering",
                                     "OTHER_TREERING_ALGOS=ring",
                                     "TREERING_ALGOS",
                                     "TREERING_TIMEOUT_MS=5",
                                     "TREERING_ALGORITHM=ring",
                                     "TREERING_IDENTITY=1",
                                     nullptr};
  std::vector<std::string> lines;
  for (const UnknownVariable& each : unknown_variables(environment)) {
    lines.push_back(each.text);
    EXPECT_EQ(each.is_near, each.text.find("did you mean") != std::string::npos) << each.text;
  }
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "TREERING_TIMEOT is not known and has no effect; did you mean TREERING_TIMEOUT?");
  EXPECT_EQ(lines[1], "TREERING_CHANELS is not known and has no effect; did you mean TREERING_CHANNELS?");
  EXPECT_EQ(lines[2], "TREERING_HOME is not known and has no effect; docs/options.md lists the variables");
  EXPECT_EQ(lines[3], "TREERING_ALGOS is not known and has no effect; did you mean TREERING_ALGO?");
  EXPECT_EQ(lines[4], "TREERING_TIMEOUT_MS is not known and has no effect; did you mean TREERING_TIMEOUT?");
  EXPECT_EQ(lines[5], "TREERING_ALGORITHM is not known and has no effect; did you mean TREERING_ALGO?");
  EXPECT_EQ(lines[6], "TREERING_IDENTITY is not known and has no effect; docs/options.md lists the variables");
}

TEST(Variables, AllOnesOfTheOptionsPageAreKnown) {
  const std::string page = options_markdown();
  std::vector<std::string> names;
  const std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  for (size_t at = page.find("`TREERING_"); at != std::string::npos; at = page.find("`TREERING_", at + 1)) {
    const size_t end = page.find_first_not_of(letters, at + 1);
    if (end != std::string::npos && page[end] == '`') names.push_back(page.substr(at + 1, end - at - 1));
  }
  EXPECT_GT(names.size(), 30u);
  std::vector<const char*> environment;
  for (const std::string& each : names) environment.push_back(each.c_str());
  environment.push_back(nullptr);
  for (const UnknownVariable& each : unknown_variables(environment.data())) ADD_FAILURE() << each.text;
}

}  // namespace
}  // namespace treering
