#include "communicator/root_service.h"

#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "communicator/local_socket.h"
#include "communicator/wire.h"
#include "core/log.h"

namespace treering {
namespace {

constexpr auto kHelloPatience = std::chrono::seconds(10);
constexpr size_t kMaxStrangers = 256;  // connections that have not authenticated

struct Peer {
  int fd = -1;
  Nonce challenge{};
  Clock::time_point since = Clock::now();
  bool known = false;
  Hello hello{};
  std::string settings;
  std::string in;
  std::string out;
  bool pass_descriptor = false;  // with the first byte of `out`
  bool has_blob = false;
  std::string blob;
};

class RootService {
 public:
  RootService(const UniqueId& id, int listener) : id_(id), listener_(listener) {}
  ~RootService() {
    close(listener_);
    if (segment_ >= 0) close(segment_);
    for (auto& peer : peers_) close(peer->fd);
  }

  void run() {
    while (!finished_) {
      poll_once();
      check_deadline();
      if (failed_) return flush_failure();
    }
  }

 private:
  void poll_once() {
    std::vector<pollfd> fds{{listener_, POLLIN, 0}};
    for (auto& peer : peers_)
      fds.push_back({peer->fd, static_cast<short>(POLLIN | (peer->out.empty() ? 0 : POLLOUT)), 0});
    if (poll(fds.data(), fds.size(), 200) < 0 && errno != EINTR) return fail(trSystemError, "poll failed at the root");
    if (fds[0].revents != 0) accept_peer();
    for (size_t i = 1; i < fds.size() && !failed_; ++i) {
      Peer& peer = *peers_[i - 1];
      if ((fds[i].revents & POLLOUT) != 0) flush(peer);
      if ((fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) receive(peer);
    }
    drop_closed();
  }

  void accept_peer() {
    int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    size_t strangers = 0;
    for (auto& peer : peers_) strangers += !peer->known;
    if (strangers >= kMaxStrangers) {
      close(fd);
      return;
    }
    auto peer = std::make_unique<Peer>();
    peer->fd = fd;
    randombytes_buf(peer->challenge.data(), peer->challenge.size());
    std::string body(reinterpret_cast<const char*>(peer->challenge.data()), peer->challenge.size());
    send_frame(*peer, make_frame(FrameKind::kChallenge, body));
    peers_.push_back(std::move(peer));
  }

  void send_frame(Peer& peer, const std::string& frame) {
    peer.out += frame;
    flush(peer);
  }

  void flush(Peer& peer) {
    while (!peer.out.empty()) {
      ssize_t sent =
          send_with_descriptor(peer.fd, peer.out.data(), peer.out.size(), peer.pass_descriptor ? segment_ : -1);
      if (sent <= 0) return;  // full: poll says when; broken: the read side notices
      peer.pass_descriptor = false;
      peer.out.erase(0, static_cast<size_t>(sent));
    }
  }

  void receive(Peer& peer) {
    char buffer[16384];
    ssize_t got = recv(peer.fd, buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return leave(peer);
    peer.in.append(buffer, static_cast<size_t>(got));
    while (!failed_ && take_frame(peer)) continue;
  }

  // Consumes one whole frame of the peer's input; false when there is none.
  bool take_frame(Peer& peer) {
    FrameHeader header;
    if (peer.fd < 0 || peer.in.size() < sizeof header) return false;
    std::memcpy(&header, peer.in.data(), sizeof header);
    if (header.bytes > (peer.known ? kMaxFrameBytes : kMaxHelloBytes)) return leave(peer), false;
    if (peer.in.size() < sizeof header + header.bytes) return false;
    std::string body = peer.in.substr(sizeof header, header.bytes);
    peer.in.erase(0, sizeof header + header.bytes);
    if (!peer.known && header.kind == FrameKind::kHello) {
      greet(peer, body);
    } else if (peer.known && header.kind == FrameKind::kData && !peer.has_blob) {
      peer.has_blob = true;
      peer.blob = std::move(body);
      finish_round();
    } else {
      leave(peer);
    }
    return true;
  }

  void greet(Peer& peer, const std::string& body) {
    if (body.size() < kMacBytes + sizeof(Hello)) return leave(peer);
    auto* bytes = reinterpret_cast<const unsigned char*>(body.data());
    std::string signed_part(reinterpret_cast<const char*>(peer.challenge.data()), peer.challenge.size());
    signed_part += body.substr(kMacBytes);
    if (crypto_auth_verify(bytes, reinterpret_cast<const unsigned char*>(signed_part.data()), signed_part.size(),
                           id_.secret.data()) != 0) {
      log_line(LogLevel::kWarn, "a connection that does not know the communicator's secret was refused");
      return leave(peer);
    }
    std::memcpy(&peer.hello, body.data() + kMacBytes, sizeof(Hello));
    peer.settings = body.substr(kMacBytes + sizeof(Hello));
    peer.known = true;
    check_hello(peer);
    if (failed_) return;
    if (peer.hello.timeout_ms > 0)
      deadline_ = std::min(deadline_, peer.since + std::chrono::milliseconds(peer.hello.timeout_ms));
    by_rank_[peer.hello.rank] = &peer;
    if (by_rank_.size() == ranks_) open_segment();
  }

  void check_hello(const Peer& peer) {
    const Hello& hello = peer.hello;
    if (by_rank_.empty()) {
      ranks_ = hello.ranks;
      settings_ = peer.settings;
      first_rank_ = hello.rank;
    }
    if (hello.rank >= hello.ranks)
      return fail(trInvalidArgument, fmt::format("rank {} of {} ranks", hello.rank, hello.ranks));
    if (hello.ranks != ranks_)
      return fail(trInvalidUsage, fmt::format("nranks differs: rank {} gave {}, rank {} gave {}", first_rank_, ranks_,
                                              hello.rank, hello.ranks));
    if (by_rank_.count(hello.rank) != 0)
      return fail(trInvalidUsage, fmt::format("rank {} of {} was given twice, by process {} and by process {}",
                                              hello.rank, ranks_, by_rank_[hello.rank]->hello.pid, hello.pid));
    if (peer.settings != settings_)
      return fail(trInvalidUsage, fmt::format("settings differ between ranks {} and {}: {}", first_rank_, hello.rank,
                                              difference(settings_, peer.settings)));
  }

  static std::string difference(const std::string& a, const std::string& b) {
    size_t at = 0, line = 0;
    while (at < a.size() && at < b.size() && a[at] == b[at]) {
      if (a[at] == '\n') line = at + 1;
      ++at;
    }
    auto text = [line](const std::string& s) { return s.substr(line, s.find('\n', line) - line); };
    return fmt::format("'{}' and '{}'", text(a), text(b));
  }

  // All are here: their blobs may flow, and the shared memory travels with the first answer.
  void open_segment() {
    segment_ = memfd_create("treering-segment", MFD_CLOEXEC);
    auto bytes = static_cast<off_t>(by_rank_[0]->hello.segment_bytes);
    if (segment_ >= 0 && ftruncate(segment_, bytes) != 0) {
      close(segment_);
      segment_ = -1;
    }
    for (auto& [rank, peer] : by_rank_) {
      unsigned char mac[kMacBytes];
      crypto_auth(mac, peer->hello.nonce.data(), peer->hello.nonce.size(), id_.secret.data());
      peer->pass_descriptor = segment_ >= 0;
      send_frame(*peer, make_frame(FrameKind::kHello, std::string(reinterpret_cast<char*>(mac), sizeof mac)));
    }
  }

  void finish_round() {
    if (by_rank_.size() < ranks_) return;
    std::string all;
    for (auto& [rank, peer] : by_rank_) {
      if (!peer->has_blob) return;
      auto bytes = static_cast<uint32_t>(peer->blob.size());
      all.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
      all += peer->blob;
    }
    std::string frame = make_frame(FrameKind::kData, all);
    for (bool own : {false, true})  // in the order of fail(), for what the blobs say may end a rank as well
      for (auto& [rank, peer] : by_rank_) {
        if ((peer->hello.pid == static_cast<uint32_t>(getpid())) != own) continue;
        peer->has_blob = false;
        send_frame(*peer, frame);
      }
    ++round_;
  }

  // The connection is at its end: a stranger's is forgotten; a rank's may only end when all is done.
  void leave(Peer& peer) {
    if (!peer.known || round_ >= kRounds) {
      if (peer.known && ++left_ == ranks_) finished_ = true;
      close(peer.fd);
      peer.fd = -1;
      return;
    }
    std::string who = fmt::format("rank {} (pid {}) ended or gave up while the communicator was being created",
                                  peer.hello.rank, peer.hello.pid);
    close(peer.fd);
    peer.fd = -1;
    fail(trRemoteError, who);
  }

  void drop_closed() {
    std::erase_if(peers_, [this](const std::unique_ptr<Peer>& peer) {
      bool silent = !peer->known && Clock::now() - peer->since > kHelloPatience;
      if (silent && peer->fd >= 0) {
        close(peer->fd);
        peer->fd = -1;
      }
      return peer->fd < 0 && !peer->known;
    });
  }

  void check_deadline() {
    if (failed_ || finished_ || Clock::now() < deadline_) return;
    std::string missing;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      auto found = by_rank_.find(rank);
      bool arrived = found != by_rank_.end();
      if (arrived && (by_rank_.size() < ranks_ || found->second->has_blob)) continue;
      missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", rank);
      if (arrived) missing += fmt::format(" (pid {}, stopped answering)", found->second->hello.pid);
      if (missing.size() > 300) {
        missing += ", ...";
        break;
      }
    }
    fail(trTimeout, fmt::format("the deadline passed while the communicator was being created; missing of {} ranks: {}",
                                ranks_, missing));
  }

  void fail(trResult_t code, const std::string& text) {
    if (failed_) return;
    failed_ = true;
    std::string frame = make_error_frame(code, text);
    // The ranks of this process last: when they fail, the process may end and this thread with it.
    for (bool own : {false, true})
      for (auto& peer : peers_) {
        if (peer->fd < 0 || !peer->known || (peer->hello.pid == static_cast<uint32_t>(getpid())) != own) continue;
        peer->pass_descriptor = false;
        send_frame(*peer, frame);
      }
  }

  void flush_failure() {
    auto until = Clock::now() + std::chrono::seconds(2);
    for (auto& peer : peers_)
      while (peer->fd >= 0 && !peer->out.empty() && Clock::now() < until) {
        flush(*peer);
        if (!peer->out.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
  }

  static constexpr int kRounds = 2;  // Communicator::create's allgathers

  UniqueId id_;
  int listener_;
  int segment_ = -1;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<uint32_t, Peer*> by_rank_;
  uint32_t ranks_ = 0;
  uint32_t first_rank_ = 0;
  std::string settings_;
  Clock::time_point deadline_ = Clock::time_point::max();
  uint32_t left_ = 0;
  int round_ = 0;
  bool finished_ = false;
  bool failed_ = false;
};

}  // namespace

Status start_root_service(const UniqueId& id) {
  int listener = -1;
  TR_RETURN_IF_ERROR(listen_local(socket_name(id), &listener));
  std::thread([id, listener] { RootService(id, listener).run(); }).detach();
  return {};
}

}  // namespace treering
