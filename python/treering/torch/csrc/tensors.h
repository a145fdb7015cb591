// SPDX-License-Identifier: Apache-2.0
// The memory of tensors, as the library takes it.
//
// A call that only moves data takes every type of element: those that the library does not have travel as bytes. A call
// that computes takes the library's types alone. What is refused is named with its argument, in the words of
// torch.distributed.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <string>
#include <vector>

#include "treering/treering.h"

namespace treering::pytorch {

// What a call does with elements.
enum class Use { kMoves, kComputes };

struct Elements {
  void* data = nullptr;
  size_t count = 0;
  trDataType_t type = trUint8;
  // The count of so many elements of the tensor: of those that travel as bytes it is larger.
  size_t per_element = 1;
};

// TypeError or ValueError where the tensor cannot be used.
Elements elements_of(const char* call, const std::string& argument, const at::Tensor& tensor, Use use);

// Several tensors as blocks of one buffer: the first in memory is where it begins.
struct Blocks {
  void* base = nullptr;
  std::vector<size_t> counts;
  std::vector<size_t> displacements;
};
// `wanted` blocks of the type of `like`, which is the call's other argument.
Blocks blocks_of(const char* call, const std::string& argument, const std::vector<at::Tensor>& tensors, size_t wanted,
                 const at::Tensor& like);

// The one tensor of a list in which torch.distributed hands it over.
const at::Tensor& only_one(const char* call, const std::string& argument, const std::vector<at::Tensor>& tensors);
void check_same_type(const char* call, const at::Tensor& one, const at::Tensor& other);
void check_count(const char* call, const std::string& argument, const at::Tensor& tensor, int64_t wanted,
                 const char* why);

}  // namespace treering::pytorch
