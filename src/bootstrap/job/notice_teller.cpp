// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/notice_teller.h"

namespace treering {
namespace {

constexpr auto kLookForOrphans = std::chrono::milliseconds(100);
constexpr auto kTellAttempt = std::chrono::seconds(1);  // the kernel alone would ask again less and less often

}  // namespace

void NoticeTeller::tell() {
  if (job_.closed || !job_.runs() || since() == Clock::time_point()) return;
  for (uint32_t process : detector_.untold(since(), Clock::now())) {
    if (dials_.count(process) != 0 || process >= tree_.size()) continue;
    auto done = [this, process](const Status&, DialEnd end, const std::shared_ptr<SecureConnection>& connection) {
      dials_.erase(process);
      if (end == DialEnd::kRefused || end == DialEnd::kNoSuchJob) detector_.told(process);  // there is none to tell
      if (!connection) return;  // else again, until the time for it is over
      for (const NoticeMessage& notice : notices_.notices()) connection->send(encode(notice));
      connection->close_after_sending();
      detector_.told(process);
      changed_();
    };
    dials_[process] = job_.dial(tree_.place(process), Clock::now() + kTellAttempt, std::move(done));
  }
}

bool NoticeTeller::must_stay() const {
  if (job_.closed || since() == Clock::time_point()) return false;
  if (!job_.runs() && !notices_.has_verdict()) return false;  // the others are told that the job has failed
  const auto now = Clock::now();
  return detector_.awaits_orphans(search_.unresponsive(), notices_.verdict_at(), now) ||
         (job_.runs() && !detector_.untold(since(), now).empty());
}

void NoticeTeller::stay() {
  tell();
  if (!look_again_.is_set()) look_again_.set(kLookForOrphans, changed_);
}

void NoticeTeller::close() {
  look_again_.cancel();
  for (const auto& [process, dial] : std::exchange(dials_, {})) dial->cancel();
}

}  // namespace treering
