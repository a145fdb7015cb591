// SPDX-License-Identifier: Apache-2.0
#include "reductions.h"

#include <algorithm>

namespace treering::pytorch {
namespace {

using Op = c10d::ReduceOp;

constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "UNUSED"};

std::optional<trRedOp_t> of_numbers(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::PREMUL_SUM:
      return trSum;
    case Op::AVG:
      return trAvg;
    case Op::PRODUCT:
      return trProd;
    case Op::MIN:
      return trMin;
    case Op::MAX:
      return trMax;
    case Op::BAND:
      return trBitAnd;
    case Op::BOR:
      return trBitOr;
    case Op::BXOR:
      return trBitXor;
    default:
      return std::nullopt;
  }
}

std::optional<trRedOp_t> of_bool(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR:
      return trLogicalOr;
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND:
      return trLogicalAnd;
    case Op::BXOR:
      return trLogicalXor;
    default:
      return std::nullopt;
  }
}

bool is_bitwise(Op::RedOpType op) { return op == Op::BAND || op == Op::BOR || op == Op::BXOR; }

std::optional<trRedOp_t> operation_of(Op::RedOpType op, at::ScalarType type) {
  if (type == at::kBool) return of_bool(op);
  if (at::isFloatingType(type) && is_bitwise(op)) return std::nullopt;
  if (at::isComplexType(type) && (is_bitwise(op) || op == Op::MIN || op == Op::MAX)) return std::nullopt;
  return of_numbers(op);
}

// The factor of a PREMUL_SUM, as one element of the type.
at::Tensor factor_of(const char* call, const c10d::ReduceOp& op, at::ScalarType type) {
  const auto* given = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(given != nullptr, call,
                    ": op is PREMUL_SUM without a factor; "
                    "torch.distributed._make_nccl_premul_sum(factor) makes one");
  if (given->tensor_factor.defined()) return given->tensor_factor.to(at::kCPU, type).contiguous();
  return at::scalar_tensor(given->double_factor, at::TensorOptions().dtype(at::kDouble)).to(type);
}

}  // namespace

Reduction::Reduction(const char* call, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const auto operation = operation_of(op.op_, type);
  TORCH_CHECK_TYPE(operation.has_value(), call, ": op is ", kNames[std::min<int>(op.op_, Op::UNUSED)],
                   ", which does not go with dtype ", type);
  operation_ = *operation;
  type_ = elements_of(call, "tensor", tensor, Use::kComputes).type;
  if (op.op_ == Op::PREMUL_SUM) factor_ = factor_of(call, op, type);
}

}  // namespace treering::pytorch
