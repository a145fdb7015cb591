// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/notice_flood.h"

#include <unistd.h>

namespace treering {

void NoticeFlood::notify(NoticeMessage notice) { take(log_.number(std::move(notice), tree_.own()), tree_.own()); }

void NoticeFlood::take(const NoticeMessage& notice, uint32_t from) {
  const NoticeLog::Taken taken = log_.take(notice, Clock::now());
  if (taken.pass_on) connections_.send_to_neighbours(encode(notice), from);
  if (taken.apply) apply_(notice);
}

void NoticeFlood::hear(std::shared_ptr<SecureConnection> connection, const std::string& first) {
  auto take_one = [this, held = job_.hold()](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    NoticeMessage notice;
    if (!job_.closed && decode(bytes, &notice)) take(notice, kNobody);
  };
  SecureConnection::Events events;
  events.frame = take_one;
  connections_.keep_until_closed(std::move(connection), std::move(events));
  take_one(first, -1);
}

void NoticeFlood::tell_all(uint32_t neighbour) {
  for (const NoticeMessage& notice : log_.notices()) connections_.send(neighbour, encode(notice));
}

void NoticeFlood::tell_dissolved() {
  connections_.send_to_neighbours(
      encode(NoticeMessage{.origin = tree_.own(), .type = NoticeType::kDissolved, .process = tree_.own()}));
}

}  // namespace treering
