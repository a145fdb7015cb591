// SPDX-License-Identifier: Apache-2.0
// The option that additions_test.py has added is read, refused, compared between ranks and documented.
#include <cstdio>
#include <cstdlib>

#include "core/config.h"

using namespace treering;

namespace {

bool fails(const char* what) { return std::fprintf(stderr, "%s\n", what), false; }

bool is_there() {
  Config config;
  if (!resolve_config(nullptr, &config).ok() || config.patience != 3) return fails("wrong default");
  setenv("TREERING_PATIENCE", "7", 1);
  if (!resolve_config(nullptr, &config).ok() || config.patience != 7) return fails("not read");
  bool compared = false;
  for (const std::string& setting : agreed_settings(config)) compared |= setting == "patience (TREERING_PATIENCE)=7";
  if (!compared) return fails("not compared between ranks");
  setenv("TREERING_PATIENCE", "10", 1);
  const Status refused = resolve_config(nullptr, &config);
  if (refused.message() != "TREERING_PATIENCE is '10'; give 0 to 9 (for example TREERING_PATIENCE=5)")
    return fails(("wrong error: " + refused.message()).c_str());
  if (options_markdown().find("| `patience` | `TREERING_PATIENCE` | 0 to 9 | 3 | How often a thing is tried. |") ==
      std::string::npos)
    return fails("not documented");
  return true;
}

}  // namespace

int main() { return is_there() ? 0 : 1; }
