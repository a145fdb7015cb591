// SPDX-License-Identifier: Apache-2.0
// PMI-1, the wire protocol of MPICH's process manager, which srun --mpi=pmi2 speaks too: lines of `key=value` words
// over the socket whose number is in PMI_FD.
//
// Balaji et al., "PMI: A scalable parallel process-management interface for extreme-scale systems", EuroMPI 2010.
#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/clock.h"
#include "core/config.h"

#include "launch/launch.h"

namespace treering {
namespace {

constexpr size_t kMaxLine = 4096;

class Pmi {
 public:
  Pmi(int fd, Clock::time_point deadline) : fd_(fd), deadline_(deadline) {}

  // Sends a command and returns the value of `word` in the answer, which must be `expected`.
  Status ask(const std::string& command, const std::string& expected, const char* word, std::string* value) {
    const std::string line = "cmd=" + command + "\n";
    for (size_t at = 0; at < line.size();) {
      TR_RETURN_IF_ERROR(wait_for(POLLOUT));
      const ssize_t sent = write(fd_, line.data() + at, line.size() - at);
      if (sent < 0 && errno != EINTR && errno != EAGAIN) return broken(std::strerror(errno));
      if (sent > 0) at += static_cast<size_t>(sent);
    }
    std::string answer;
    TR_RETURN_IF_ERROR(read_line(&answer));
    if (value_of(answer, "cmd") != expected) return broken("it answered '" + answer + "' to '" + command + "'");
    if (const std::string rc = value_of(answer, "rc"); !rc.empty() && rc != "0")
      return broken("it refused '" + command + "': " + answer);
    if (word != nullptr) *value = value_of(answer, word);
    return {};
  }

 private:
  static Status broken(const std::string& why) { return {trSystemError, "the process manager behind PMI_FD: " + why}; }
  static std::string value_of(const std::string& line, const std::string& word) {
    const std::string padded = " " + line + " ";
    const size_t at = padded.find(" " + word + "=");
    if (at == std::string::npos) return "";
    const size_t from = at + word.size() + 2;
    return padded.substr(from, padded.find(' ', from) - from);
  }
  Status wait_for(short events) {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0) return {trTimeout, "the deadline passed while the process manager behind PMI_FD was waited for"};
      pollfd entry{fd_, events, 0};
      const int ready = poll(&entry, 1, static_cast<int>(std::min<long>(left, 1000)));
      if (ready > 0) return {};
      if (ready < 0 && errno != EINTR) return broken(std::strerror(errno));
    }
  }
  Status read_line(std::string* line) {
    for (char c = 0;;) {
      TR_RETURN_IF_ERROR(wait_for(POLLIN));
      const ssize_t got = read(fd_, &c, 1);
      if (got == 0) return broken("it closed the connection");
      if (got < 0 && errno != EINTR && errno != EAGAIN) return broken(std::strerror(errno));
      if (got <= 0) continue;
      if (c == '\n') return {};
      if (line->size() >= kMaxLine) return broken("it sent a line without an end");
      line->push_back(c);
    }
  }

  int fd_;
  Clock::time_point deadline_;
};

// Whether the program has called MPI_Init(), whose library talks over the same connection.
// mpi4py and other extensions of interpreters load it for themselves alone: such a one is found by MPICH's names (its
// ABI's, Debian's).
bool mpi_is_initialized() {
  void* ask = dlsym(RTLD_DEFAULT, "MPI_Initialized");
  for (const char* name : {"libmpi.so.12", "libmpich.so.12"}) {
    if (ask != nullptr) break;
    void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    ask = dlsym(library, "MPI_Initialized");
    dlclose(library);  // who loaded it has it still
  }
  int answer = 0;
  return ask != nullptr && reinterpret_cast<int (*)(int*)>(ask)(&answer) == 0 && answer != 0;
}

}  // namespace

Status exchange_through_pmi(Launch* launch, const MakeId& fresh, int timeout_ms, trUniqueId* id) {
  launch->launcher = "PMI";
  if (mpi_is_initialized())
    return {
        trInvalidUsage,
        "MPI_Init() has been called, and MPI uses the launcher's connection (PMI_FD) itself: let rank 0 make an id with "
        "trGetUniqueId(), broadcast it with MPI_Bcast(), and call trCommInitRankConfig()"};
  uint32_t fd = 0;
  TR_RETURN_IF_ERROR(environment_number("PMI_FD", 0, 1 << 20, &fd));
  TR_RETURN_IF_ERROR(environment_number("PMI_SIZE", 1, kMaxRanks, &launch->ranks));
  TR_RETURN_IF_ERROR(environment_number("PMI_RANK", 0, launch->ranks - 1, &launch->rank));
  const auto timeout = timeout_ms > 0 ? std::chrono::milliseconds(timeout_ms) : std::chrono::hours(24 * 365);
  Pmi pmi(static_cast<int>(fd), Clock::now() + timeout);
  std::string space, text;
  TR_RETURN_IF_ERROR(pmi.ask("init pmi_version=1 pmi_subversion=1", "response_to_init", nullptr, nullptr));
  TR_RETURN_IF_ERROR(pmi.ask("get_my_kvsname", "my_kvsname", "kvsname", &space));
  if (launch->rank == 0) {
    TR_RETURN_IF_ERROR(fresh(id));
    TR_RETURN_IF_ERROR(pmi.ask(fmt::format("put kvsname={} key={} value={}", space, kIdKey, id_text(*id)), "put_result",
                               nullptr, nullptr));
  }
  TR_RETURN_IF_ERROR(pmi.ask("barrier_in", "barrier_out", nullptr, nullptr));
  if (launch->rank != 0) {
    TR_RETURN_IF_ERROR(pmi.ask(fmt::format("get kvsname={} key={}", space, kIdKey), "get_result", "value", &text));
    TR_RETURN_IF_ERROR(parse_id_text(text, id));
  }
  return pmi.ask("finalize", "finalize_ack", nullptr, nullptr);
}

}  // namespace treering
