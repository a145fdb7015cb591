// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/zero_copy.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <linux/errqueue.h>

#include <cerrno>
#include <cstring>

namespace treering {

bool take_zero_copy_notice(int fd, ZeroCopyNotice* notice) {
  for (;;) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6))];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return false;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      const bool error = (part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR) ||
                         (part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR);
      if (!error || part->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
      sock_extended_err what;
      std::memcpy(&what, CMSG_DATA(part), sizeof what);
      if (what.ee_origin != SO_EE_ORIGIN_ZEROCOPY || what.ee_errno != 0) continue;
      *notice = {what.ee_info, what.ee_data, (what.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0};
      return true;
    }
  }
}

bool ZeroCopyUse::enable(int fd) const {
  const int on = 1;
  return on_ && setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;
}

void ZeroCopyUse::completed(uint32_t sends, bool copied) {
  refused_ = 0;
  (copied ? copied_ : in_place_) += sends;
  if (wish_ == TcpZeroCopy::kWhereItPays && copied_ >= kTrials && copied_ > in_place_) on_ = false;
}

bool ZeroCopyUse::is_refusal(int error) {
  return error == ENOBUFS || error == ENOMEM || error == EFAULT || error == EINVAL || error == EOPNOTSUPP;
}

void ZeroCopyUse::refused() {
  if (++refused_ >= kTrials && wish_ == TcpZeroCopy::kWhereItPays) on_ = false;
}

}  // namespace treering
