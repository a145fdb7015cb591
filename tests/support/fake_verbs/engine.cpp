// SPDX-License-Identifier: Apache-2.0
// When work moves: in random steps of random queue pairs, or all of it at once.
#include <algorithm>

#include "support/fake_verbs/world.h"

namespace treering::fake_verbs {

namespace {

bool show(std::deque<Completion>& done, ibv_cq* cq) {
  if (done.empty()) return false;
  const Completion completion = done.front();
  done.pop_front();  // before: the queue may overrun, and the queue pair fail
  enter(*static_cast<Cq*>(cq), completion);
  return true;
}

constexpr int kPhases = 6;

bool phase(Qp& qp, int number) {
  switch (number) {
    case 0:
      return transmit(qp);
    case 1:
      return land(qp);
    case 2:
      return deliver(qp);
    case 3:
      return acknowledge(qp);
    case 4:
      return show(qp.send_done, qp.send_cq);
    default:
      return show(qp.receive_done, qp.recv_cq);
  }
}

struct Pace {
  uint64_t skipped;  // of 8 turns of a queue pair
  uint64_t steps;    // of each phase, fewer than this
};
constexpr Pace kPaces[] = {{0, 0}, {1, 16}, {3, 6}, {5, 3}};

bool random_steps(Qp& qp) {
  World& all = world();
  const int level = all.settings.disorder;
  const Pace pace = kPaces[level];
  if (qp.stalled_until > all.clock || all.below(8) < pace.skipped) return false;
  if (level == 3 && all.below(256) == 0) {
    qp.stalled_until = all.clock + all.below(200'000);
    return false;
  }
  bool moved = false;
  const int first = static_cast<int>(all.below(kPhases));
  for (int i = 0; i < kPhases; ++i) {
    for (uint64_t steps = all.below(pace.steps); steps > 0 && phase(qp, (first + i) % kPhases); --steps) moved = true;
  }
  return moved;
}

bool all_steps(Qp& qp) {
  bool moved = false;
  for (int i = 0; i < kPhases; ++i) {
    while (phase(qp, i)) moved = true;
  }
  return moved;
}

bool turn(bool all) {
  std::vector<Qp*>& active = world().active;
  bool moved = false;
  const size_t count = active.size();  // others may come meanwhile
  const size_t first = all ? 0 : world().below(count);
  for (size_t i = 0; i < count; ++i) {
    Qp& qp = *active[(first + i) % count];
    if (qp.held) continue;
    if (all ? all_steps(qp) : random_steps(qp)) moved = true;
  }
  std::erase_if(active, [](Qp* qp) {
    qp->is_active = !qp->idle();
    return !qp->is_active;
  });
  return moved;
}

}  // namespace

void activate(Qp& qp) {
  if (qp.is_active) return;
  qp.is_active = true;
  world().active.push_back(&qp);
  wake_pump();
}

bool advance(bool all) {
  world().clock += 1000;
  bool moved = turn(all);
  while (all && moved && turn(true)) {
  }
  return moved;
}

void changed() {
  if (world().settings.disorder == 0) advance(true);
}

void settle() {
  while (turn(true)) {
  }
}

}  // namespace treering::fake_verbs
