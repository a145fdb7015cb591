// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/links.h"

#include <new>
#include <utility>

#include "core/background_thread.h"

namespace treering::verbs {
namespace {

constexpr size_t kStackBytes = 256 << 10;

}  // namespace

Links::~Links() {
  end();
  for (const auto& [peer, link] : links_) link->end_introductions();
}

std::shared_ptr<VerbsLink> Links::find_or_make(uint32_t peer) {
  std::unique_lock lock(mutex_);
  auto found = links_.try_emplace(peer);
  for (; !found.second; found = links_.try_emplace(peer)) {
    if (found.first->second) return found.first->second;
    changed_.wait(lock);  // until it is made, or could not be
  }
  std::shared_ptr<VerbsLink>& link = found.first->second;  // stays where it is
  lock.unlock();
  std::shared_ptr<VerbsLink> made;
  try {
    made = make_(peer);
  } catch (...) {  // out of memory: who comes next tries again
    lock.lock();
    links_.erase(peer);
    changed_.notify_all();
    throw;
  }
  lock.lock();
  link = made;
  if (departed_.contains(peer)) made->depart();
  const bool is_stopped = is_stopped_;
  changed_.notify_all();
  lock.unlock();
  if (is_stopped) made->stop();
  return made;
}

std::vector<std::shared_ptr<VerbsLink>> Links::all() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<VerbsLink>> made;
  for (const auto& [peer, link] : links_)
    if (link) made.push_back(link);
  return made;
}

void Links::arm() const {
  std::lock_guard lock(mutex_);
  for (const auto& [peer, link] : links_)
    if (link) link->arm();
}

void Links::introduced(uint32_t peer, EndPoint end) {
  std::unique_lock lock(mutex_);
  if (is_over_) return;
  waiting_.insert_or_assign(peer, std::move(end));
  if (!runs_)
    runs_ = start_joined_thread(
        "treering-verbs", kStackBytes, [this] { work(); }, &thread_);
  if (runs_) return changed_.notify_all();
  // No thread can be had.
  const auto next = waiting_.extract(peer);
  lock.unlock();
  answer(peer, next.mapped());
}

void Links::departed(uint32_t peer) {
  std::lock_guard lock(mutex_);
  departed_.insert(peer);
  if (const auto found = links_.find(peer); found != links_.end() && found->second) found->second->depart();
}

void Links::ignore_introductions() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  waiting_.clear();
}

void Links::stop() {
  ignore_introductions();
  {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;  // also of links that are being made
  }
  for (const auto& link : all()) link->stop();
}

void Links::end() {
  ignore_introductions();
  {
    std::lock_guard lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
    if (!std::exchange(runs_, false)) return;
  }
  pthread_join(thread_, nullptr);
}

void Links::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ended_ || !waiting_.empty(); });
    if (is_ended_) return;
    const auto next = waiting_.extract(waiting_.begin());
    lock.unlock();
    try {
      answer(next.key(), next.mapped());
    } catch (const std::bad_alloc&) {
      // The peer introduces itself again.
    }
    lock.lock();
  }
}

void Links::answer(uint32_t peer, const EndPoint& end) {
  const std::shared_ptr<VerbsLink> link = find_or_make(peer);
  {
    std::lock_guard lock(mutex_);
    if (is_over_) return;
  }
  link->hear(end);
}

}  // namespace treering::verbs
