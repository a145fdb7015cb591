// SPDX-License-Identifier: Apache-2.0
// Numbers of elements of the 161 gradients of ResNet-50 (He et al., CVPR 2016, table 1, with batch normalisation).
#pragma once

#include <cstddef>
#include <vector>

namespace bench {

inline std::vector<size_t> resnet50_gradients() {
  std::vector<size_t> sizes;
  const auto convolution = [&](size_t in, size_t out, size_t width) {
    sizes.push_back(in * out * width * width);
    sizes.push_back(out);  // the scales of the batch normalisation
    sizes.push_back(out);  // ... and its shifts
  };
  convolution(3, 64, 7);
  size_t in = 64, width = 64;
  for (size_t blocks : {3u, 4u, 6u, 3u}) {
    for (size_t block = 0; block < blocks; ++block) {
      convolution(in, width, 1);
      convolution(width, width, 3);
      convolution(width, 4 * width, 1);
      if (block == 0) convolution(in, 4 * width, 1);
      in = 4 * width;
    }
    width *= 2;
  }
  sizes.push_back(in * 1000);
  sizes.push_back(1000);
  return sizes;
}

}  // namespace bench
