// SPDX-License-Identifier: Apache-2.0
// A machine described by hand, read into a LinkGraph. docs/topology.md has the format:
//
//   gpu 0-3 on cpu0 at 24        # GB/s each way
//   gpu 4-7 on cpu1 at pcie4x16
//   link cpu0 cpu1 at 16
//   nvlink 0 1 x4
//
// A line that is wrong is an error with file, line, the value at fault and what to do. Nothing is guessed: a GPU that a
// link names must have been declared, and what is said twice is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"
#include "topology/graph.h"

namespace treering {

inline constexpr size_t kMaxDescriptionBytes = size_t{16} << 20;
inline constexpr size_t kMaxDescribedNodes = size_t{1} << 16;
inline constexpr uint32_t kMaxDescribedHosts = 1024;
inline constexpr uint32_t kMaxPartNumber = 9999;
inline constexpr uint32_t kMaxLinkCount = 1024;
inline constexpr double kMinGivenGbps = 0.001, kMaxGivenGbps = 100000;

// `name`: of the file, for errors.
Status parse_description(std::string_view text, const std::string& name, LinkGraph* graph);

Status read_description(const std::string& path, LinkGraph* graph);

}  // namespace treering
