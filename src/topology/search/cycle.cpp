// SPDX-License-Identifier: Apache-2.0
#include "topology/search/cycle.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace treering::search {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kShorter = 1e-12;   // what counts as an improvement, in parts of the cycle's length
constexpr size_t kMaxMoves = 20000;  // of one improvement
constexpr uint32_t kMaxSegment = 3;  // of nodes that are moved together

class LocalSearch {
 public:
  LocalSearch(std::span<const double> distance, uint32_t count) : distance_(distance), count_(count) {}

  std::vector<uint32_t> run(size_t kicks) {
    order_ = nearest_neighbours();
    improve();
    std::vector<uint32_t> best = order_;
    double best_length = cycle_length(distance_, count_, best);
    for (size_t kick = 0; kick < kicks && count_ >= 5; ++kick) {
      order_ = best;
      disturb();
      improve();
      const double length = cycle_length(distance_, count_, order_);
      if (length < best_length) best = order_, best_length = length;
    }
    return best;
  }

 private:
  double at(uint32_t from, uint32_t to) const { return distance_[size_t{from} * count_ + to]; }
  uint32_t node(size_t position) const { return order_[position % count_]; }

  std::vector<uint32_t> nearest_neighbours() const {
    std::vector<uint32_t> order{0};
    std::vector<char> visited(count_, 0);
    visited[0] = 1;
    while (order.size() < count_) {
      uint32_t best = count_;
      for (uint32_t next = 0; next < count_; ++next)
        if (visited[next] == 0 && (best == count_ || at(order.back(), next) < at(order.back(), best))) best = next;
      visited[best] = 1;
      order.push_back(best);
    }
    return order;
  }

  void improve() {
    for (size_t moves = 0; moves < kMaxMoves; ++moves) {
      least_ = kShorter * cycle_length(distance_, count_, order_);
      if (!move_a_segment() && !reverse_a_segment()) return;
    }
  }

  // A segment of up to kMaxSegment nodes, as it is or reversed, to another place (Or-opt).
  bool move_a_segment() {
    for (uint32_t length = 1; length <= kMaxSegment && length + 2 <= count_; ++length)
      for (uint32_t begin = 0; begin < count_; ++begin) {
        const uint32_t before = node(begin + count_ - 1), first = node(begin), last = node(begin + length - 1),
                       after = node(begin + length);
        const double saved = at(before, first) + at(last, after) - at(before, after);
        double turned = 0;
        for (uint32_t i = 0; i + 1 < length; ++i)
          turned += at(node(begin + i + 1), node(begin + i)) - at(node(begin + i), node(begin + i + 1));
        for (uint32_t gap = begin + length; gap < begin + count_ - 1; ++gap) {
          const uint32_t left = node(gap), right = node(gap + 1);
          const double there = at(left, right);
          const bool reversed = at(left, last) + at(first, right) + turned < at(left, first) + at(last, right);
          const double cost = reversed ? at(left, last) + at(first, right) + turned : at(left, first) + at(last, right);
          if (cost - there >= saved - least_) continue;
          move(begin, length, gap, reversed);
          return true;
        }
      }
    return false;
  }

  void move(uint32_t begin, uint32_t length, uint32_t gap, bool reversed) {
    std::vector<uint32_t> segment, order;
    for (uint32_t i = 0; i < length; ++i) segment.push_back(node(begin + i));
    if (reversed) std::reverse(segment.begin(), segment.end());
    for (uint32_t position = begin + length; position < begin + count_; ++position) {
      order.push_back(node(position));
      if (position == gap) order.insert(order.end(), segment.begin(), segment.end());
    }
    order_ = std::move(order);
  }

  // All from one position to another, turned round (2-opt).
  bool reverse_a_segment() {
    for (uint32_t i = 1; i + 1 < count_; ++i) {
      double ahead = 0, back = 0;  // no sums over more than the segment: a pair without a path would hide the rest
      for (uint32_t j = i + 1; j < count_; ++j) {
        ahead += at(order_[j - 1], order_[j]);
        back += at(order_[j], order_[j - 1]);
        const uint32_t before = order_[i - 1], after = node(j + 1);
        const double now = at(before, order_[i]) + ahead + at(order_[j], after);
        const double then = at(before, order_[j]) + back + at(order_[i], after);
        if (!(then < now - least_)) continue;
        std::reverse(order_.begin() + i, order_.begin() + j + 1);
        return true;
      }
    }
    return false;
  }

  // A double bridge: two neighbouring segments change places, and no direction is turned.
  void disturb() {
    uint32_t cuts[3];
    for (uint32_t& cut : cuts) cut = 1 + static_cast<uint32_t>(random() % (count_ - 1));
    std::sort(std::begin(cuts), std::end(cuts));
    std::rotate(order_.begin() + cuts[0], order_.begin() + cuts[1], order_.begin() + cuts[2]);
  }

  uint64_t random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }

  std::span<const double> distance_;
  uint32_t count_;
  std::vector<uint32_t> order_;
  double least_ = 0;
  uint64_t state_ = 1;
};

}  // namespace

double cycle_length(std::span<const double> distance, uint32_t count, const std::vector<uint32_t>& order) {
  double length = 0;
  for (uint32_t i = 0; i < count; ++i) length += distance[size_t{order[i]} * count + order[(i + 1) % count]];
  return length;
}

std::vector<uint32_t> shortest_cycle(std::span<const double> distance, uint32_t count) {
  if (count == 1) return {0};
  const uint32_t others = count - 1;  // the last node is where the cycle begins
  const auto at = [&](uint32_t from, uint32_t to) { return distance[size_t{from} * count + to]; };
  std::vector<double> best((size_t{1} << others) * others, kInfinite);  // [visited * others + where it is]
  for (uint32_t i = 0; i < others; ++i) best[(size_t{1} << i) * others + i] = at(others, i);
  const size_t all = (size_t{1} << others) - 1;
  for (size_t visited = 1; visited <= all; ++visited)
    for (uint32_t last = 0; last < others; ++last) {
      const double here = best[visited * others + last];
      if (!(here < kInfinite)) continue;
      for (uint32_t next = 0; next < others; ++next) {
        if ((visited >> next & 1) != 0) continue;
        double& there = best[(visited | size_t{1} << next) * others + next];
        there = std::min(there, here + at(last, next));
      }
    }
  std::vector<uint32_t> order{others};
  uint32_t next = others;
  for (size_t visited = all; visited != 0;) {
    uint32_t found = others;
    double least = kInfinite;
    for (uint32_t last = 0; last < others; ++last)
      if ((visited >> last & 1) != 0)
        if (const double length = best[visited * others + last] + at(last, next); found == others || length < least)
          found = last, least = length;
    order.push_back(found);
    visited &= ~(size_t{1} << found);
    next = found;
  }
  std::reverse(order.begin() + 1, order.end());
  return order;
}

std::vector<uint32_t> short_cycle(std::span<const double> distance, uint32_t count, size_t kicks) {
  return LocalSearch(distance, count).run(kicks);
}

double cycle_lower_bound(std::span<const double> distance, uint32_t count) {
  if (count < 2) return 0;
  std::vector<double> entered(count, kInfinite);
  double bound = 0;
  for (uint32_t to = 0; to < count; ++to) {
    for (uint32_t from = 0; from < count; ++from)
      if (from != to) entered[to] = std::min(entered[to], distance[size_t{from} * count + to]);
    bound += entered[to];
  }
  for (uint32_t from = 0; from < count; ++from) {
    double left = kInfinite;
    for (uint32_t to = 0; to < count; ++to)
      if (from != to) left = std::min(left, distance[size_t{from} * count + to] - entered[to]);
    bound += left;
  }
  return bound;
}

std::vector<Edge> lightest_tree(std::span<const double> distance, uint32_t count) {
  std::vector<Edge> edges;
  std::vector<double> weight(count, kInfinite);
  std::vector<uint32_t> nearest(count, 0);
  std::vector<char> inside(count, 0);
  uint32_t added = 0;
  for (uint32_t step = 1; step < count; ++step) {
    inside[added] = 1;
    uint32_t best = count;
    for (uint32_t node = 0; node < count; ++node) {
      if (inside[node] != 0) continue;
      const double both = distance[size_t{added} * count + node] + distance[size_t{node} * count + added];
      if (both < weight[node]) weight[node] = both, nearest[node] = added;
      if (best == count || weight[node] < weight[best]) best = node;
    }
    edges.push_back({nearest[best], best});
    added = best;
  }
  return edges;
}

}  // namespace treering::search
