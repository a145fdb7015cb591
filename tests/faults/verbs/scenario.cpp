// SPDX-License-Identifier: Apache-2.0
#include "scenario.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "../calls.h"

namespace faults::verbs {
namespace {

constexpr const char* kKindNames[kKinds] = {"queue-pair", "completion", "key",       "locked-memory", "call",
                                            "late",       "port-short", "port-long", "leave",         "datagrams"};
constexpr const char* kPhaseNames[kPhases] = {"init", "small", "large", "alltoall", "destroy"};

constexpr ibv_wc_status kOfSends[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR,
                                      IBV_WC_REM_OP_ERR,    IBV_WC_REM_INV_REQ_ERR,   IBV_WC_LOC_PROT_ERR,
                                      IBV_WC_LOC_QP_OP_ERR, IBV_WC_GENERAL_ERR};
constexpr ibv_wc_status kOfReceives[] = {IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR,
                                         IBV_WC_GENERAL_ERR};
constexpr const char* kCreating[] = {"ibv_open_device", "ibv_query_port", "ibv_alloc_pd",  "ibv_create_comp_channel",
                                     "ibv_create_cq",   "ibv_create_qp",  "ibv_modify_qp", "ibv_create_ah",
                                     "ibv_reg_mr",      "ibv_post_recv"};
constexpr const char* kCalling[] = {"ibv_post_send", "ibv_post_recv", "ibv_poll_cq", "ibv_req_notify_cq", "ibv_reg_mr"};
constexpr int kErrors[] = {ENOMEM, EIO, EINVAL, EAGAIN};

class Draws {
 public:
  explicit Draws(uint64_t start) : state_(start) {}
  uint64_t below(uint64_t end) { return (state_ = mixed(state_)) % end; }
  template <typename Values>
  auto one_of(const Values& values) {
    return values[below(std::size(values))];
  }

 private:
  uint64_t state_;
};

void draw_call(Draws* draws, Scenario* scenario) {
  scenario->function = scenario->calls() ? draws->one_of(kCalling) : draws->one_of(kCreating);
  scenario->error = draws->one_of(kErrors);
  const bool is_frequent = std::strcmp(scenario->function, "ibv_poll_cq") == 0;
  scenario->nth = 1 + static_cast<int>(draws->below(is_frequent ? 1000 : 12));
}

}  // namespace

const char* name_of(Kind kind) { return kKindNames[static_cast<int>(kind)]; }
const char* name_of(Phase phase) { return kPhaseNames[static_cast<int>(phase)]; }

Scenario draw(uint64_t seed, uint64_t index) {
  Draws draws(mixed(seed) ^ mixed(~index));
  Scenario scenario;
  scenario.seed = seed, scenario.index = index;
  scenario.kind = static_cast<Kind>(draws.below(kKinds));
  scenario.phase = static_cast<Phase>(draws.below(kPhases));
  if (scenario.kind == Kind::kLeave && !scenario.calls()) scenario.phase = Phase::kSmall;
  if (scenario.kind == Kind::kDatagrams) scenario.phase = draws.below(2) == 0 ? Phase::kInit : Phase::kDestroy;
  scenario.ranks = 2 + static_cast<int>(draws.below(3));
  scenario.disorder = static_cast<int>(draws.below(4));
  scenario.has_tcp = draws.below(4) == 0;
  scenario.is_registered = draws.below(3) == 0;
  const bool is_large = scenario.phase == Phase::kLarge;
  scenario.posts = draws.below(is_large ? 400 : 1500);
  scenario.draw = draws.below(1 << 20);
  scenario.is_receive = draws.below(3) == 0;
  scenario.status = scenario.is_receive ? draws.one_of(kOfReceives) : draws.one_of(kOfSends);
  draw_call(&draws, &scenario);
  scenario.held = kRetryTime / 50 + draws.below(kRetryTime / 2);
  if (is_large) scenario.least = 256 << 10, scenario.most = 2 << 20;
  if (scenario.phase == Phase::kAllToAll) scenario.most = draws.below(2) == 0 ? 4096 : 256 << 10;
  scenario.numbers = draws.below(1ull << 40);
  return scenario;
}

Outcome Scenario::outcome() const {
  switch (kind) {
    case Kind::kQueuePair:
    case Kind::kCompletion:
    case Kind::kPortLong:
      return calls() ? Outcome::kError : Outcome::kEither;  // while communicators come and go it may hit nothing
    case Kind::kLeave:
      return Outcome::kError;
    case Kind::kKey:
    case Kind::kLockedMemory:
    case Kind::kCall:
      return Outcome::kEither;
    case Kind::kLate:
    case Kind::kPortShort:
      // A port that is down is no port for a communicator that is made meanwhile.
      return calls() || kind == Kind::kLate ? Outcome::kSurvive : Outcome::kEither;
    case Kind::kDatagrams:
      return Outcome::kSurvive;
  }
  return Outcome::kEither;
}

std::string Scenario::describe() const {
  std::string text = fmt::format("{}:{} kind={} phase={} ranks={} bytes={}..{} disorder={} posts={}{}{}", seed, index,
                                 name_of(kind), name_of(phase), ranks, least, most, disorder, posts,
                                 has_tcp ? " tcp" : "", is_registered ? " registered" : "");
  if (kind == Kind::kCompletion)
    text += fmt::format(" {} of a {}", ibv_wc_status_str(status), is_receive ? "receive" : "send");
  if (kind == Kind::kCall) text += fmt::format(" {}: {}, call {}", function, std::strerror(error), nth);
  if (kind == Kind::kLate || kind == Kind::kPortShort) text += fmt::format(" for {} virtual ms", held / 1'000'000);
  return text;
}

}  // namespace faults::verbs
