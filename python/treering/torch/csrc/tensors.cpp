// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <algorithm>
#include <optional>

namespace treering::pytorch {
namespace {

std::optional<trDataType_t> type_of(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return trInt8;
    case at::kByte:
      return trUint8;
    case at::kInt:
      return trInt32;
    case at::kUInt32:
      return trUint32;
    case at::kLong:
      return trInt64;
    case at::kUInt64:
      return trUint64;
    case at::kHalf:
      return trFloat16;
    case at::kFloat:
      return trFloat32;
    case at::kDouble:
      return trFloat64;
    case at::kBFloat16:
      return trBfloat16;
    case at::kFloat8_e4m3fn:
      return trFloat8e4m3;
    case at::kFloat8_e5m2:
      return trFloat8e5m2;
    case at::kComplexFloat:
      return trComplex64;
    case at::kComplexDouble:
      return trComplex128;
    case at::kBool:
      return trBool;
    default:
      return std::nullopt;
  }
}

constexpr const char* kTypes =
    "int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2, "
    "complex64, complex128 or bool";

std::string shape_of(const at::Tensor& tensor) { return c10::str(tensor.sizes()); }

}  // namespace

Elements elements_of(const char* call, const std::string& argument, const at::Tensor& tensor, Use use) {
  TORCH_CHECK_VALUE(tensor.defined(), call, ": ", argument, " is undefined; a tensor is wanted");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), call, ": ", argument, " is on ", tensor.device(),
                    "; a tensor of the CPU is wanted: treering does not take tensors of other devices yet");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, call, ": ", argument, " has layout ", tensor.layout(),
                    "; a dense tensor is wanted");
  TORCH_CHECK_VALUE(tensor.is_contiguous(), call, ": ", argument, " has shape ", shape_of(tensor), " and strides ",
                    tensor.strides(), "; a contiguous tensor is wanted, as tensor.contiguous() gives");
  const auto type = type_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(type.has_value() || use == Use::kMoves, call, ": ", argument, " has dtype ", tensor.scalar_type(),
                   ", which the library does not compute with; ", kTypes, " is wanted");
  const auto count = static_cast<size_t>(tensor.numel());
  if (type.has_value()) return {tensor.data_ptr(), count, *type, 1};
  const size_t size = tensor.itemsize();
  return {tensor.data_ptr(), count * size, trUint8, size};
}

Blocks blocks_of(const char* call, const std::string& argument, const std::vector<at::Tensor>& tensors, size_t wanted,
                 const at::Tensor& like) {
  TORCH_CHECK_VALUE(tensors.size() == wanted, call, ": ", argument, " has ", tensors.size(), " tensors; ", wanted,
                    " are wanted, one for each rank");
  std::vector<Elements> parts;
  std::byte* first = nullptr;
  for (size_t i = 0; i < wanted; ++i) {
    check_same_type(call, tensors[i], like);
    parts.push_back(elements_of(call, c10::str(argument, "[", i, "]"), tensors[i], Use::kMoves));
    auto* begin = static_cast<std::byte*>(parts[i].data);
    if (parts[i].count > 0 && (first == nullptr || begin < first)) first = begin;
  }
  Blocks blocks{first, {}, {}};
  for (size_t i = 0; i < wanted; ++i) {
    const size_t size = tensors[i].itemsize() / parts[i].per_element;
    const size_t away = parts[i].count == 0 ? 0 : static_cast<size_t>(static_cast<std::byte*>(parts[i].data) - first);
    TORCH_CHECK_VALUE(away % size == 0, call, ": ", argument, "[", i, "] lies at ", parts[i].data,
                      ", which is no multiple of its elements' size from the others; ordinary tensors are wanted");
    blocks.counts.push_back(parts[i].count);
    blocks.displacements.push_back(away / size);
  }
  return blocks;
}

const at::Tensor& only_one(const char* call, const std::string& argument, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, call, ": ", argument, " are ", tensors.size(), " tensors; one is wanted");
  return tensors[0];
}

void check_same_type(const char* call, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK_TYPE(one.scalar_type() == other.scalar_type(), call, ": the tensors have dtypes ", one.scalar_type(),
                   " and ", other.scalar_type(), "; the same one is wanted");
}

void check_count(const char* call, const std::string& argument, const at::Tensor& tensor, int64_t wanted,
                 const char* why) {
  TORCH_CHECK_VALUE(tensor.numel() == wanted, call, ": ", argument, " has ", tensor.numel(), " elements (shape ",
                    shape_of(tensor), "); ", wanted, " are wanted: ", why);
}

}  // namespace treering::pytorch
