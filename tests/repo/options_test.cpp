// SPDX-License-Identifier: Apache-2.0
// docs/options.md is what the option table says. `options_test --write PATH` writes it anew.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "core/config.h"

namespace {

TEST(Options, DocumentationEqualsTheTable) {
  std::ifstream file(TREERING_OPTIONS_MD);
  ASSERT_TRUE(file) << TREERING_OPTIONS_MD << " is missing; write it with: options_test --write docs/options.md";
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), treering::options_markdown()) << "write it anew with: options_test --write docs/options.md";
}

TEST(Options, EveryFieldAndVariableIsDocumented) {
  std::string text = treering::options_markdown();
  for (const treering::OptionRow& row : treering::option_table()) {
    EXPECT_NE(text.find(std::string("`") + row.name + "`"), std::string::npos) << row.name;
    if (row.environment != nullptr) {
      EXPECT_NE(text.find(row.environment), std::string::npos) << row.environment;
    }
    EXPECT_STRNE(row.documentation, "") << row.name;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--write") == 0) {
    std::ofstream file(argv[2]);
    file << treering::options_markdown();
    if (file.flush()) return 0;
    std::cerr << "error: cannot write \"" << argv[2] << "\"\n";
    return 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
