// SPDX-License-Identifier: Apache-2.0
// What the table of options, which may not ask the table of transports, says of the transports.
#include "transport/table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config.h"

namespace treering {
namespace {

constexpr const char* kWhere =
    "the row \"transports\" of src/core/config.cpp has the transports of src/transport/table.cpp";

class TransportsOption : public testing::Test {
 protected:
  void SetUp() override {
    for (const OptionRow& row : option_table())
      if (row.name == std::string("transports")) option_ = &row;
    ASSERT_NE(option_, nullptr) << kWhere;
    for (const TransportRow& row : transports()) {
      all_.push_back(row.name);
      if (row.only_named) only_named_.push_back(row.name);
    }
  }

  const OptionRow* option_ = nullptr;
  std::vector<std::string> all_, only_named_;
};

TEST_F(TransportsOption, ListsThemInOrderOfPreference) {
  EXPECT_EQ(option_->values, fmt::format("list of {}; `^` in front excludes", fmt::join(all_, ", "))) << kWhere;
}

TEST_F(TransportsOption, SaysWhichMustBeNamed) {
  EXPECT_EQ(option_->default_text, fmt::format("all but {}", fmt::join(only_named_, " and "))) << kWhere;
  const std::string documentation = option_->documentation;
  EXPECT_NE(
      documentation.find(fmt::format("`{}` are used only where they are named", fmt::join(only_named_, "` and `"))),
      std::string::npos)
      << kWhere;
}

TEST_F(TransportsOption, TakesEachOfThem) {
  for (const std::string& name : all_) {
    TransportSet allowed = 0;
    EXPECT_TRUE(parse_transports(name, &allowed).ok()) << name;
    EXPECT_EQ(row_of(allowed).name, name);
  }
}

TEST_F(TransportsOption, SaysWhatWasProbablyMeant) {
  const struct {
    const char* text;
    const char* words;
  } cases[] = {{"shared-memory,^tcp", "'^tcp' is unknown; ^ stands once, in front of the whole list; give "},
               {"TCP", "'TCP' is unknown; did you mean tcp?; give "},
               {"shmm", "'shmm' is unknown; did you mean shared-memory?; give "},
               {"pigeons", "'pigeons' is unknown; give "}};
  for (const auto& one : cases) {
    TransportSet allowed = 0;
    EXPECT_NE(parse_transports(one.text, &allowed).message().find(one.words), std::string::npos)
        << parse_transports(one.text, &allowed).message();
  }
}

}  // namespace
}  // namespace treering
