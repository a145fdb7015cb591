// SPDX-License-Identifier: Apache-2.0
// The binary tree of Sanders, Speck and Traeff over the nodes 0 .. n-1, in-order numbered; 0 is the root.
//
//          0
//           `---4---.
//            .-'     `-.
//            2         6          even nodes are inner nodes, odd ones leaves
//           / \       / \.
//          1   3     5   7
//
// "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12), 2009.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace treering {

struct BinaryTree {
  uint32_t n;

  uint32_t parent(uint32_t x) const {
    const uint32_t low = x & (~x + 1);
    const uint32_t up = (x ^ low) | (low << 1);
    return up < n ? up : x ^ low;
  }
  uint32_t depth(uint32_t x) const {
    uint32_t d = 0;
    for (; x != 0; x = parent(x)) ++d;
    return d;
  }
  // Children in ascending order.
  std::vector<uint32_t> children(uint32_t x) const {
    if (x == 0) return n > 1 ? std::vector<uint32_t>{std::bit_floor(n - 1)} : std::vector<uint32_t>{};
    std::vector<uint32_t> result;
    uint32_t half = (x & (~x + 1)) / 2;
    if (half == 0) return result;
    result.push_back(x - half);
    while (half != 0 && x + half >= n) half /= 2;
    if (half != 0) result.push_back(x + half);
    return result;
  }
};

}  // namespace treering
