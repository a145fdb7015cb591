// SPDX-License-Identifier: Apache-2.0
// treering-topo --import: the graph of a described machine, its rings and trees, as text and as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"
#include "topology/search/search.h"

namespace treering::tools {

struct TopoSearch {
  std::string path;
  std::string gpus;  // "0-3,6"; empty: all
  uint32_t channels = 16;
  bool explain = false;
  bool json = false;
};

Status print_search(const TopoSearch& search);

}  // namespace treering::tools
