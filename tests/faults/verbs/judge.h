// SPDX-License-Identifier: Apache-2.0
// What was not as it should be in a run, by what the ranks have seen.
#pragma once

#include <string>
#include <vector>

#include "run.h"

namespace faults::verbs {

struct Finding {
  std::string kind;  // wrong, untold, late, culprit, changed, unstopped, left over, unexpected, driver
  std::string text;
};

std::vector<Finding> judge(const Scenario& scenario, const Record& record);

}  // namespace faults::verbs
