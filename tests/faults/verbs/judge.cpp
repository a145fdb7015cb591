// SPDX-License-Identifier: Apache-2.0
#include "judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

namespace faults::verbs {
namespace {

std::set<int> named_ranks(const std::string& text) {
  constexpr std::string_view kRank = "ank ";
  std::set<int> named;
  for (size_t at = text.find(kRank); at != text.npos; at = text.find(kRank, at + 1)) {
    const size_t number = at + kRank.size(), end = text.find_first_not_of("0123456789", number);
    if (at > 0 && (text[at - 1] == 'r' || text[at - 1] == 'R') && end != number && number < text.size())
      named.insert(std::stoi(text.substr(number, end - number)));
  }
  return named;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

class Judge {
 public:
  Judge(const Scenario& scenario, const Record& record) : scenario_(scenario), record_(record) {}

  std::vector<Finding> findings() {
    if (!record_.trouble.empty()) add("driver", record_.trouble);
    if (!record_.has_hit && scenario_.outcome() == Outcome::kError) add("driver", "the fault has met nothing");
    for (size_t rank = 0; rank < record_.ranks.size(); ++rank) judge_rank(static_cast<int>(rank), record_.ranks[rank]);
    if (scenario_.calls()) judge_agreement();
    if (!record_.left.empty()) add("left over", record_.left);
    return std::move(findings_);
  }

 private:
  void add(const char* kind, std::string text) { findings_.push_back({kind, std::move(text)}); }

  Outcome outcome() const { return record_.was_long ? Outcome::kEither : scenario_.outcome(); }
  bool any_error() const {
    return std::any_of(record_.ranks.begin(), record_.ranks.end(),
                       [](const Report& rank) { return !rank.errors.empty(); });
  }

  void judge_rank(int rank, const Report& report) {
    const std::string who = fmt::format("rank {}: ", rank);
    if (!report.wrong.empty()) add("wrong", who + report.wrong);
    if (!report.changed.empty()) add("changed", who + report.changed);
    if (!report.unstopped.empty()) add("unstopped", who + "queue pairs" + report.unstopped);
    if (report.is_gone) return;
    for (const Error& error : report.errors) {
      if (error.when < record_.fault_at) add("unexpected", who + "before the fault: " + error.text);
      const double taken = error.when - std::max(error.began, record_.fault_at);
      if (taken > kTimeout + kSlack)
        add("late", fmt::format("{}{} failed after {:.1f} s: {}", who, error.call, taken, error.text));
      judge_text(rank, who, error);
    }
    if (outcome() == Outcome::kSurvive && !report.errors.empty())
      add("unexpected", who + report.errors.front().call + ": " + report.errors.front().text);
    if (outcome() == Outcome::kError && report.errors.empty()) add("untold", who + "it has seen no error");
    if (report.errors.empty() && !report.is_ok && !(scenario_.phase == Phase::kInit && any_error()))
      add("untold", who + "it has no result");
  }

  // The right ranks, in words that help.
  void judge_text(int rank, const std::string& who, const Error& error) {
    const std::set<int> named = named_ranks(error.text);
    const auto is_named = [&](int named_rank) { return named.count(named_rank) != 0; };
    const auto& victims = record_.victims;
    // While communicators come and go a rank may see nothing but that one of the two has failed. Who has all that it needs
    // leaves, and the last that it sent may be lost to the rank that is hit (docs/decisions/0031).
    const bool is_hit = std::count(victims.begin(), victims.end(), rank) != 0;
    const bool is_right = scenario_.calls()
                              ? std::all_of(victims.begin(), victims.end(), is_named)
                              : victims.empty() || std::any_of(victims.begin(), victims.end(), is_named) ||
                                    (is_hit && has(error.text, "destroyed its communicator"));
    if (!is_right)
      return add("culprit",
                 fmt::format("{}it does not name rank {}: {}", who, fmt::join(victims, " and "), error.text));
    if (named.empty()) return add("culprit", who + "it names no rank: " + error.text);
    if (scenario_.kind == Kind::kLeave) {
      if (!has(error.text, "destroyed its communicator"))
        add("culprit", who + "it does not say that the rank left: " + error.text);
      return;
    }
    if (!has(error.text, "verbs with rank")) return;
    for (const char* part : {"fake0 port 1", "GID"})
      if (!has(error.text, part)) add("culprit", fmt::format("{}\"{}\" is not in: {}", who, part, error.text));
    if (named.size() < 2 && scenario_.calls()) add("culprit", who + "it does not name both ranks: " + error.text);
    if (has(error.text, "Flush") || has(error.text, "flush"))
      add("culprit", who + "what was flushed is no cause: " + error.text);
    if (scenario_.kind == Kind::kPortLong && scenario_.calls() && !has(error.text, "retry counter exceeded"))
      add("culprit", who + "it does not say that packets were not acknowledged: " + error.text);
  }

  // The first failure of any rank is that of all. Ranks that come to the deadline together may each say it in their words:
  // of the same operation and the same ranks.
  void judge_agreement() {
    std::set<std::string> texts;
    std::set<std::pair<std::string, std::set<int>>> said;
    for (const Report& report : record_.ranks) {
      if (report.is_gone || report.errors.empty()) continue;
      const std::string& text = report.errors.front().text;
      const bool is_deadline = text.rfind("no progress within ", 0) == 0;
      texts.insert(text);
      said.insert({is_deadline ? text.substr(0, text.find(": ")) : text, named_ranks(text)});
    }
    if (said.size() > 1) add("culprit", "the ranks say different words: " + *texts.begin() + " / " + *texts.rbegin());
  }

  const Scenario& scenario_;
  const Record& record_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> judge(const Scenario& scenario, const Record& record) {
  return Judge(scenario, record).findings();
}

}  // namespace faults::verbs
