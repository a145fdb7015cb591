// SPDX-License-Identifier: Apache-2.0
// A packing programme: max sum(x), A x <= c, x >= 0, where A has no negative entry and each column has a positive one.
//
// Rows are there from the start; columns are added while it is being solved, as column generation does. It is a revised
// simplex with a dense inverse of the basis. The slacks are a basis to begin with, so there is no first phase, and no
// programme is infeasible or unbounded.
//
// - Cycling: right sides are made to differ by up to 1e-7 of themselves, and after kMaxStall steps that gain nothing
//   the rule is Bland's.
// - Drift: the inverse is computed anew every kMinRefactorAfter steps, or more where there are more rows.
// - amounts() obey the true right sides: columns in a row that is a little too full get less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace treering::search {

struct RowEntry {
  uint32_t row = 0;
  double value = 0;
};

class PackingProgramme {
 public:
  // Each above 0.
  explicit PackingProgramme(std::vector<double> capacities);

  // Its entries name each row at most once. Returns its index.
  size_t add_column(std::vector<RowEntry> entries);

  // To the optimum over the columns that are there. False: `max_steps` did not suffice, and what is there is a solution
  // that is not the best one.
  bool solve(size_t max_steps = 100000);

  double value() const;                 // the sum of amounts()
  std::vector<double> amounts() const;  // of each column
  std::vector<double> prices() const;   // of each row: the dual solution; sum(price * capacity) is the value
  size_t steps() const { return steps_; }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  static constexpr size_t kMaxStall = 60;
  static constexpr size_t kMinRefactorAfter = 100;

  bool is_slack(size_t variable) const { return variable < rows_; }
  void entries_into(size_t variable, std::vector<double>* dense) const;
  void compute_prices();
  size_t entering(bool bland) const;
  size_t leaving(const std::vector<double>& direction, bool bland) const;
  void pivot(size_t row, size_t variable, const std::vector<double>& direction);
  void refactor();
  void compute_basic(const std::vector<double>& right, std::vector<double>* basic) const;

  size_t rows_ = 0;
  double scale_ = 1;                            // of x: the largest capacity
  std::vector<double> capacities_;              // as given
  std::vector<double> right_;                   // 1 and a bit for each row, which was divided by its capacity
  std::vector<std::vector<RowEntry>> columns_;  // scaled
  std::vector<std::vector<RowEntry>> given_;    // as added
  std::vector<size_t> basis_;                   // variable of each row: a slack below rows_, else rows_ + column
  std::vector<char> is_basic_;
  std::vector<double> inverse_;  // rows_ x rows_
  std::vector<double> basic_;    // values of the basic variables
  std::vector<double> dual_;     // prices of scaled rows
  size_t steps_ = 0, since_refactor_ = 0;
};

}  // namespace treering::search
