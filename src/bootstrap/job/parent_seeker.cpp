// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/parent_seeker.h"

#include <fmt/format.h>
#include <unistd.h>

#include "core/log.h"

namespace treering {
namespace {

constexpr auto kSeekAgain = std::chrono::milliseconds(50);
constexpr int kMaxDrops = 2;  // of connections to candidates, until one has attached this process

}  // namespace

void ParentSeeker::seek() {
  if (is_dialing()) return;
  search_.begin(Clock::now());
  try_next();
}

void ParentSeeker::seek_part(uint32_t process) {
  if (!is_dialing() && !lacks_parent()) try_only(tree_.place(process));
}

void ParentSeeker::try_only(const Place& place) {
  search_.begin_with(place);
  try_next();
}

Clock::duration ParentSeeker::timeout_for(const Place& parent) const {
  return search_.timeout_for(parent, job_.meets(), Clock::now());
}

void ParentSeeker::try_next() {
  if (job_.closed) return;
  const std::optional<Place> next = search_.next();
  if (!next) return no_parent();
  auto done = [this, place = *next](const Status& status, DialEnd end, std::shared_ptr<SecureConnection> connection) {
    dial_ = nullptr;
    if (status.code() == trTimeout || (end == DialEnd::kNoAnswer && job_.meets())) search_.no_answer(place);
    if (status.ok()) return ask(std::move(connection), place);
    if (job_.meets() && !tree_.has_parent() && status.code() == trSystemError)  // no other candidate helps
      return events_.failed({status.code(), "this process: " + status.message()});
    if (end == DialEnd::kRefused && tree_.has_left(place.process)) detector_.relay_is_gone(place.process, Clock::now());
    if (const std::string why = search_.failed(place, status.message(), Clock::now()); !why.empty())
      log_line(LogLevel::kInfo, "cannot attach to " + why);
    try_next();
  };
  dial_ = job_.dial(*next, Clock::now() + timeout_for(*next), std::move(done));
}

void ParentSeeker::ask_first(std::shared_ptr<SecureConnection> connection) {
  search_.begin(Clock::now());
  if (const std::optional<Place> first = search_.next()) ask(std::move(connection), *first);
}

void ParentSeeker::ask(std::shared_ptr<SecureConnection> connection, const Place& parent) {
  SecureConnection::Events events;
  events.frame = [this, held = job_.hold(), parent](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    AttachedMessage message;
    if (!decode(bytes, &message)) return;
    asked_timer_.cancel();
    auto attached = std::exchange(asked_, nullptr);
    drops_ = 0;
    if (!job_.closed) search_.end();
    events_.attached(std::move(attached), parent.process, message.round);
  };
  events.closed = [this, held = job_.hold(), parent](const std::string& reason) {
    asked_timer_.cancel();
    asked_ = nullptr;
    // A connection that breaks is no answer.
    if (SecureConnection::was_dropped(reason) && drops_++ < kMaxDrops)
      search_.try_again(parent);
    else
      (void)search_.failed(parent, reason, Clock::now());
    try_next();
  };
  asked_timer_.set(timeout_for(parent), [this, parent, late = events.closed] {
    search_.no_answer(parent);
    stop_asking();
    late("no answer");
  });
  asked_ = connection;
  connection->set_events(std::move(events));
  connection->send(encode(events_.request()));
}

void ParentSeeker::stop_dialing() {
  if (dial_) std::exchange(dial_, nullptr)->cancel();
}

void ParentSeeker::close() {
  stop_dialing();
  stop_asking();
}

// It may have taken this process for a child already, or will when it runs again.
void ParentSeeker::stop_asking() {
  if (!asked_) return;
  asked_timer_.cancel();
  connections_.part_from(std::exchange(asked_, nullptr), kNobody);
}

void ParentSeeker::no_parent() {
  using Outcome = ParentSearch::Outcome;
  drops_ = 0;
  const std::string& reasons = search_.reasons();
  if (job_.has_failed()) return events_.ended();
  if (job_.meets() && tree_.has_parent()) return search_.end();  // it is silent, and sought again while it is
  if (job_.meets() && search_.may_yet_answer(job_.own, Clock::now()))
    return void(job_.after(kSeekAgain, [this] {
      if (job_.meets() && !job_.closed && !tree_.has_parent()) seek();
    }));
  if (job_.meets())
    return events_.failed(
        {trRemoteError, fmt::format("the process that made the unique id (pid {}) ended while the communicator was "
                                    "being created{}{}",
                                    job_.id.root_pid, reasons.empty() ? "" : ": ", reasons)});
  const bool hears_parent =
      tree_.has_parent() && !detector_.is_unheard(tree_.parent()) && !detector_.is_silent(tree_.parent());
  if (hears_parent) {  // it was silent when the search began
    search_.end();
    follow_reparented();
    return events_.ended();
  }
  const Outcome outcome = search_.outcome(Clock::now());
  if (outcome == Outcome::kSearchAgain) {
    job_.after(kSeekAgain, [this] {
      if (lacks_parent()) seek();
    });
    return;
  }
  if (!reasons.empty()) log_line(LogLevel::kInfo, "no process above this one can be reached: " + reasons);
  if (outcome == Outcome::kBecomeTop) {
    search_.end();
    events_.become_top();
  }
  follow_reparented();
  events_.ended();
}

void ParentSeeker::follow(const MovingMessage& reparented, uint32_t from) {
  switch (search_.follow(reparented, from, is_dialing() || lacks_parent(), Clock::now())) {
    case ParentSearch::Follow::kAttach:
      return try_only(tree_.place(reparented.new_top));
    case ParentSearch::Follow::kTellParent:
      return connections_.send(tree_.parent(), encode(reparented));
    case ParentSearch::Follow::kLater:
    case ParentSearch::Follow::kNothing:
      return;
  }
}

void ParentSeeker::follow_reparented() {
  for (const auto& [reparented, from] : search_.take_reparented()) follow(reparented, from);
}

}  // namespace treering
