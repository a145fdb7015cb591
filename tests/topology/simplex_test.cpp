// SPDX-License-Identifier: Apache-2.0
// The packing programme: each solution is proved by its prices (a dual solution of the same value).
#include "topology/search/simplex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "support/seed.h"

namespace treering::search {
namespace {

struct Programme {
  std::vector<double> capacities;
  std::vector<std::vector<RowEntry>> columns;
};

PackingProgramme loaded(const Programme& programme) {
  PackingProgramme result(programme.capacities);
  for (const auto& column : programme.columns) result.add_column(column);
  return result;
}

void expect_feasible(const Programme& programme, const std::vector<double>& amounts) {
  std::vector<double> used(programme.capacities.size(), 0);
  for (size_t i = 0; i < programme.columns.size(); ++i) {
    EXPECT_GE(amounts[i], 0);
    for (const RowEntry& entry : programme.columns[i]) used[entry.row] += entry.value * amounts[i];
  }
  for (size_t row = 0; row < used.size(); ++row) EXPECT_LE(used[row], programme.capacities[row] * (1 + 1e-12)) << row;
}

// No column costs less than 1 at the prices, so no solution is worth more than they are.
void expect_optimal(const Programme& programme, const PackingProgramme& solved) {
  expect_feasible(programme, solved.amounts());
  const std::vector<double> prices = solved.prices();
  double worth = 0;
  for (size_t row = 0; row < prices.size(); ++row) {
    EXPECT_GE(prices[row], 0);
    worth += prices[row] * programme.capacities[row];
  }
  for (const auto& column : programme.columns) {
    double cost = 0;
    for (const RowEntry& entry : column) cost += prices[entry.row] * entry.value;
    EXPECT_GE(cost, 1 - 1e-6);
  }
  EXPECT_LE(solved.value(), worth * (1 + 1e-9));
  EXPECT_GE(solved.value(), worth * (1 - 1e-4));
}

Programme random_programme(std::mt19937_64& random, size_t rows, size_t columns, bool same_capacities) {
  Programme programme;
  for (size_t row = 0; row < rows; ++row)
    programme.capacities.push_back(same_capacities ? 1 : std::pow(10.0, static_cast<double>(random() % 9) - 3));
  for (size_t i = 0; i < columns; ++i) {
    std::vector<RowEntry> column;
    for (uint32_t row = 0; row < rows; ++row)
      if (random() % 4 == 0) column.push_back({row, static_cast<double>(1 + random() % 3)});
    if (column.empty()) column.push_back({static_cast<uint32_t>(random() % rows), 1});
    programme.columns.push_back(std::move(column));
  }
  return programme;
}

TEST(Simplex, KnownProgrammes) {
  // Three of {a b}, {b c}, {a c} on a, b, c of 1: a half of each.
  Programme triangle{{1, 1, 1}, {{{0, 1}, {1, 1}}, {{1, 1}, {2, 1}}, {{0, 1}, {2, 1}}}};
  PackingProgramme solved = loaded(triangle);
  ASSERT_TRUE(solved.solve());
  EXPECT_NEAR(solved.value(), 1.5, 1e-6);
  for (double amount : solved.amounts()) EXPECT_NEAR(amount, 0.5, 1e-6);
  for (double price : solved.prices()) EXPECT_NEAR(price, 0.5, 1e-6);

  Programme one{{7}, {{{0, 2}}}};
  solved = loaded(one);
  ASSERT_TRUE(solved.solve());
  EXPECT_NEAR(solved.value(), 3.5, 1e-6);
}

TEST(Simplex, WithoutColumnsNothingIsPacked) {
  PackingProgramme programme({1, 2});
  EXPECT_TRUE(programme.solve());
  EXPECT_EQ(programme.value(), 0);
  EXPECT_EQ(programme.prices(), (std::vector<double>{0, 0}));
}

TEST(Simplex, RandomProgrammesAreSolvedAndProved) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 200; ++i) {
    const Programme programme = random_programme(random, 1 + random() % 40, 1 + random() % 120, i % 2 == 0);
    PackingProgramme solved = loaded(programme);
    ASSERT_TRUE(solved.solve()) << i;
    expect_optimal(programme, solved);
    if (testing::Test::HasFailure()) FAIL() << "programme " << i;
  }
}

// Permutations on an n x n board: each optimum is n-fold degenerate.
TEST(Simplex, DegenerateProgrammesEnd) {
  std::mt19937_64 random(test_seed());
  constexpr uint32_t kSide = 8;
  Programme programme{std::vector<double>(kSide * kSide, 1.0), {}};
  std::vector<uint32_t> order(kSide);
  for (uint32_t i = 0; i < kSide; ++i) order[i] = i;
  for (int i = 0; i < 400; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<RowEntry> column;
    for (uint32_t row = 0; row < kSide; ++row) column.push_back({row * kSide + order[row], 1});
    programme.columns.push_back(std::move(column));
  }
  PackingProgramme solved = loaded(programme);
  ASSERT_TRUE(solved.solve());
  expect_optimal(programme, solved);
  EXPECT_NEAR(solved.value(), kSide, 0.35) << "400 of 40320 permutations pack nearly all of them";
}

TEST(Simplex, ColumnsMayComeOneByOne) {
  std::mt19937_64 random(test_seed());
  const Programme programme = random_programme(random, 25, 150, false);
  PackingProgramme at_once = loaded(programme), one_by_one(programme.capacities);
  ASSERT_TRUE(at_once.solve());
  double before = 0;
  for (const auto& column : programme.columns) {
    one_by_one.add_column(column);
    ASSERT_TRUE(one_by_one.solve());
    EXPECT_GE(one_by_one.value(), before * (1 - 1e-6));
    before = one_by_one.value();
  }
  expect_optimal(programme, one_by_one);
  EXPECT_NEAR(one_by_one.value(), at_once.value(), 1e-5 * at_once.value());
}

TEST(Simplex, WhatABudgetEndsIsFeasible) {
  std::mt19937_64 random(test_seed());
  const Programme programme = random_programme(random, 40, 120, false);
  PackingProgramme solved = loaded(programme);
  EXPECT_FALSE(solved.solve(3));
  EXPECT_EQ(solved.steps(), 3u);
  expect_feasible(programme, solved.amounts());
}

}  // namespace
}  // namespace treering::search
