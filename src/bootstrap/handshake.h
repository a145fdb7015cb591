// SPDX-License-Identifier: Apache-2.0
// Handshake: how two processes prove to one another that both know a job's secret, before anything else is read.
//
//   initiator                                            acceptor
//   magic, job, process, nonce a               ------->  looks the job's secret up; is that process
//              <-------  nonce b, MAC("acceptor", job, process, a, b)
//   MAC("initiator", job, process, a, b)                ------->  and from here on encrypted frames, with keys made of the
//                                                        secret, a and b, one for each direction
//
// The initiator says which process it means, as an address may lead to another one of the job, and be its own: hosts
// have the same private addresses on networks that do not meet. Both nonces are fresh, so nothing of an old connection
// is of use; the labels keep a proof from being sent back. All messages have a fixed length. A state machine over
// bytes: it has no socket.
#pragma once

#include <functional>
#include <string>

#include "bootstrap/unique_id.h"

namespace treering {

inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;  // crypto_auth_BYTES
using Nonce = std::array<unsigned char, kNonceBytes>;
using Key = std::array<unsigned char, 32>;

class Handshake {
 public:
  // The secret of a job of this process. nullptr: it has no such job, or is not `process` (0: the one where its ranks
  // meet).
  using FindSecret = std::function<const Secret*(const JobName& job, uint64_t process)>;
  Handshake(const JobName& job, const Secret& secret, uint64_t process);  // of the initiator
  explicit Handshake(FindSecret find);                                    // of the acceptor

  enum class Progress { kMore, kDone, kRefused };
  // What to send before anything was received.
  std::string opening();
  // Length of the other side's next message.
  size_t wanted() const;
  // The reason of an initiator: the process lives, and has no such job.
  static constexpr const char* kNoSuchJob =
      "it does not have this communicator, or not any more, or it is another process than was meant";
  // Takes that message and appends what to send, also with kRefused: reason() says why.
  Progress step(const std::string& message, std::string* reply);

  const std::string& reason() const { return reason_; }
  const JobName& job() const { return job_; }
  const Key& sending_key() const { return sending_; }
  const Key& receiving_key() const { return receiving_; }

 private:
  std::string what() const;
  std::string proof(const char* label) const;
  bool proves(const std::string& mac, const char* label) const;
  Progress refuse(const char* reason);
  void derive_keys();

  bool initiator_;
  int stage_ = 0;
  FindSecret find_;
  JobName job_{};
  uint64_t process_ = 0;
  Secret secret_{};
  Nonce first_{}, second_{};
  Key sending_{}, receiving_{};
  std::string reason_;
};

}  // namespace treering
