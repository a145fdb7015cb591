// SPDX-License-Identifier: Apache-2.0
#include "topology/search/simplex.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace treering::search {
namespace {

constexpr double kGain = 1e-9;         // a reduced cost from which a column enters
constexpr double kMinPivot = 1e-9;     // of a direction
constexpr double kMargin = 1e-13;      // of a capacity, for rounding
constexpr double kPerturbed = 1e-7;    // of a right side
constexpr double kRatioEqual = 1e-12;  // ratios that count as equal

// From 0.5 to 1, different for neighbours.
double bit_of(size_t row) {
  uint64_t word = (row + 1) * 0x9E3779B97F4A7C15u;
  word = (word ^ word >> 31) * 0xBF58476D1CE4E5B9u;
  return 0.5 + static_cast<double>(word >> 12) * 0x1p-53;
}

}  // namespace

PackingProgramme::PackingProgramme(std::vector<double> capacities)
    : rows_(capacities.size()), capacities_(std::move(capacities)), is_basic_(rows_, 1), inverse_(rows_ * rows_, 0.0) {
  for (double capacity : capacities_) scale_ = std::max(scale_, capacity);
  for (size_t row = 0; row < rows_; ++row) {
    right_.push_back(1 + kPerturbed * bit_of(row));
    basis_.push_back(row);
    inverse_[row * rows_ + row] = 1;
  }
  basic_ = right_;
  dual_.assign(rows_, 0);
}

size_t PackingProgramme::add_column(std::vector<RowEntry> entries) {
  std::vector<RowEntry> scaled = entries;
  for (RowEntry& entry : scaled) entry.value *= scale_ / capacities_[entry.row];
  columns_.push_back(std::move(scaled));
  given_.push_back(std::move(entries));
  is_basic_.push_back(0);
  return columns_.size() - 1;
}

void PackingProgramme::entries_into(size_t variable, std::vector<double>* dense) const {
  dense->assign(rows_, 0);
  if (is_slack(variable)) {
    (*dense)[variable] = 1;
    return;
  }
  for (const RowEntry& entry : columns_[variable - rows_]) (*dense)[entry.row] = entry.value;
}

void PackingProgramme::compute_prices() {
  std::fill(dual_.begin(), dual_.end(), 0.0);
  for (size_t row = 0; row < rows_; ++row) {
    if (is_slack(basis_[row])) continue;
    const double* const line = &inverse_[row * rows_];
    for (size_t i = 0; i < rows_; ++i) dual_[i] += line[i];
  }
}

// The variable with the largest gain; by Bland's rule the first one that has any.
size_t PackingProgramme::entering(bool bland) const {
  size_t best = kNone;
  double most = 0;
  // Prices may be small altogether, where the rows that count are: what counts as below 0 follows them.
  const double slack_gain = rows_ > 0 ? kGain * *std::max_element(dual_.begin(), dual_.end()) : 0;
  for (size_t variable = 0; variable < rows_ + columns_.size(); ++variable) {
    if (is_basic_[variable] != 0) continue;
    double gain = 0;
    if (is_slack(variable)) {
      gain = -dual_[variable];
    } else {
      gain = 1;
      for (const RowEntry& entry : columns_[variable - rows_]) gain -= dual_[entry.row] * entry.value;
    }
    if (gain <= std::max(most, is_slack(variable) ? slack_gain : kGain)) continue;
    best = variable;
    if (bland) return best;
    most = gain;
  }
  return best;
}

size_t PackingProgramme::leaving(const std::vector<double>& direction, bool bland) const {
  size_t best = kNone;
  double least = 0;
  for (size_t row = 0; row < rows_; ++row) {
    if (direction[row] <= kMinPivot) continue;
    const double ratio = std::max(basic_[row], 0.0) / direction[row];
    bool better = best == kNone || ratio < least - kRatioEqual;
    if (!better && ratio <= least + kRatioEqual)
      better = bland ? basis_[row] < basis_[best] : direction[row] > direction[best];
    if (!better) continue;
    best = row;
    least = ratio;
  }
  return best;
}

void PackingProgramme::pivot(size_t row, size_t variable, const std::vector<double>& direction) {
  double* const line = &inverse_[row * rows_];
  const double by = 1 / direction[row];
  for (size_t i = 0; i < rows_; ++i) line[i] *= by;
  basic_[row] = std::max(basic_[row], 0.0) * by;
  for (size_t other = 0; other < rows_; ++other) {
    const double factor = direction[other];
    if (other == row || factor == 0) continue;
    double* const changed = &inverse_[other * rows_];
    for (size_t i = 0; i < rows_; ++i) changed[i] -= factor * line[i];
    basic_[other] -= factor * basic_[row];
  }
  is_basic_[basis_[row]] = 0;
  is_basic_[variable] = 1;
  basis_[row] = variable;
  ++steps_;
  if (++since_refactor_ >= std::max(kMinRefactorAfter, rows_)) refactor();
}

// Gauss-Jordan with the largest pivot of each column.
void PackingProgramme::refactor() {
  since_refactor_ = 0;
  std::vector<double> matrix(rows_ * rows_, 0.0), dense, inverse(rows_ * rows_, 0.0);
  for (size_t column = 0; column < rows_; ++column) {
    entries_into(basis_[column], &dense);
    for (size_t row = 0; row < rows_; ++row) matrix[row * rows_ + column] = dense[row];
    inverse[column * rows_ + column] = 1;
  }
  for (size_t column = 0; column < rows_; ++column) {
    size_t best = column;
    for (size_t row = column + 1; row < rows_; ++row)
      if (std::abs(matrix[row * rows_ + column]) > std::abs(matrix[best * rows_ + column])) best = row;
    if (std::abs(matrix[best * rows_ + column]) < kMinPivot) return;  // the updated inverse is as good as it gets
    if (best != column)
      for (size_t i = 0; i < rows_; ++i) {
        std::swap(matrix[best * rows_ + i], matrix[column * rows_ + i]);
        std::swap(inverse[best * rows_ + i], inverse[column * rows_ + i]);
      }
    const double by = 1 / matrix[column * rows_ + column];
    for (size_t i = 0; i < rows_; ++i) matrix[column * rows_ + i] *= by, inverse[column * rows_ + i] *= by;
    for (size_t row = 0; row < rows_; ++row) {
      const double factor = matrix[row * rows_ + column];
      if (row == column || factor == 0) continue;
      for (size_t i = column; i < rows_; ++i) matrix[row * rows_ + i] -= factor * matrix[column * rows_ + i];
      for (size_t i = 0; i < rows_; ++i) inverse[row * rows_ + i] -= factor * inverse[column * rows_ + i];
    }
  }
  inverse_ = std::move(inverse);
  compute_basic(right_, &basic_);
}

void PackingProgramme::compute_basic(const std::vector<double>& right, std::vector<double>* basic) const {
  basic->assign(rows_, 0);
  for (size_t row = 0; row < rows_; ++row)
    for (size_t i = 0; i < rows_; ++i) (*basic)[row] += inverse_[row * rows_ + i] * right[i];
}

bool PackingProgramme::solve(size_t max_steps) {
  std::vector<double> direction(rows_);
  size_t stalled = 0;
  for (size_t step = 0; step < max_steps; ++step) {
    compute_prices();
    const bool bland = stalled > kMaxStall;
    const size_t variable = entering(bland);
    if (variable == kNone) return true;
    std::fill(direction.begin(), direction.end(), 0.0);
    if (is_slack(variable)) {
      for (size_t row = 0; row < rows_; ++row) direction[row] = inverse_[row * rows_ + variable];
    } else {
      for (const RowEntry& entry : columns_[variable - rows_])
        for (size_t row = 0; row < rows_; ++row) direction[row] += inverse_[row * rows_ + entry.row] * entry.value;
    }
    const size_t row = leaving(direction, bland);
    if (row == kNone) {  // drift alone: no column is without a limit
      if (since_refactor_ == 0) return false;
      refactor();
      continue;
    }
    stalled = basic_[row] > kRatioEqual ? 0 : stalled + 1;
    pivot(row, variable, direction);
  }
  compute_prices();
  return false;
}

std::vector<double> PackingProgramme::amounts() const {
  std::vector<double> result(columns_.size(), 0.0), basic, used(rows_, 0.0);
  compute_basic(std::vector<double>(rows_, 1.0), &basic);
  for (size_t row = 0; row < rows_; ++row)
    if (!is_slack(basis_[row])) result[basis_[row] - rows_] = std::max(basic[row], 0.0) * scale_;
  for (size_t column = 0; column < columns_.size(); ++column)
    for (const RowEntry& entry : given_[column]) used[entry.row] += entry.value * result[column];
  std::vector<double> most(rows_);  // what of the amounts in a row is kept
  for (size_t row = 0; row < rows_; ++row) most[row] = std::min(1.0, capacities_[row] / used[row]);
  for (size_t column = 0; column < columns_.size(); ++column) {
    double kept = 1;
    for (const RowEntry& entry : given_[column]) kept = std::min(kept, most[entry.row]);
    for (const RowEntry& entry : given_[column]) used[entry.row] -= entry.value * result[column] * (1 - kept);
    result[column] *= kept;
  }
  for (size_t column = 0; column < columns_.size(); ++column) {  // what that left free
    if (result[column] <= 0) continue;
    double more = scale_;
    for (const RowEntry& entry : given_[column])
      more = std::min(more, (capacities_[entry.row] * (1 - kMargin) - used[entry.row]) / entry.value);
    if (more <= 0) continue;
    for (const RowEntry& entry : given_[column]) used[entry.row] += entry.value * more;
    result[column] += more;
  }
  return result;
}

double PackingProgramme::value() const {
  double sum = 0;
  for (double amount : amounts()) sum += amount;
  return sum;
}

std::vector<double> PackingProgramme::prices() const {
  std::vector<double> result(rows_, 0.0);
  for (size_t row = 0; row < rows_; ++row) result[row] = std::max(dual_[row], 0.0) * scale_ / capacities_[row];
  return result;
}

}  // namespace treering::search
