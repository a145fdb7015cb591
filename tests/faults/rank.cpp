// SPDX-License-Identifier: Apache-2.0
// A process with one or several ranks for the fault injection: faults_rank KEY=VALUE...
//   ranks=N own=A[,B...] id=make|read phase=NAME seed=N least=BYTES most=BYTES [excluded=A,B] [wait=1] [ids=N]
//   [differs=WHAT]
// It runs a phase in a loop until a call fails or all ranks agree to stop. Lines on standard output, each with the
// seconds of CLOCK_MONOTONIC and the rank in front:
//   ready PID / id HEX[,HEX...] / in / heartbeat N / error CODE BEGAN CALL GROUP TEXT / again CODE TEXT / wrong CALL WHAT /
//   ok / recovered / gone HOW / did FAULT / destroyed CODE SECONDS / left WHAT=MORE... (than at the start) / end
// Commands on standard input: ids HEX[,HEX...]; stop; finish; what the ranks do to themselves (Process::obey()).
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "calls.h"
#include "ids.h"
#include "say.h"
#include "self_faults.h"

namespace faults {
namespace {

constexpr int kMaxRanks = 8;
constexpr double kTimeout = 30;  // seconds that a rank waits for the driver

std::vector<int> numbers(const std::string& text) {
  std::vector<int> result;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) result.push_back(std::atoi(part.c_str()));
  return result;
}

std::string joined(const std::vector<int>& members) {
  std::string text;
  for (int member : members) {
    if (!text.empty()) text += ',';
    text += std::to_string(member);
  }
  return text;
}

struct Options {
  int ranks = 0;
  std::vector<int> own, excluded;
  std::string id, phase;
  uint64_t seed = 0;
  size_t least = 8, most = 4096, ids = 1;
  bool wait = false;
  Other differs = Other::kNothing;  // by the command `differ`
};

constexpr std::pair<const char*, Other> kOthers[] = {{"count", Other::kCount},
                                                     {"collective", Other::kCollective},
                                                     {"root", Other::kRoot},
                                                     {"type", Other::kType},
                                                     {"operation", Other::kOperation},
                                                     {"shrink", Other::kShrink},
                                                     {"call", Other::kInPlaceOfCreation}};

// What the driver has said; shared by the ranks of the process.
struct Orders {
  std::atomic<bool> stop{false}, finish{false}, exit{false};
  std::atomic<int> deed[kMaxRanks] = {};  // what a rank does before its next call: the first letter of the command
  std::atomic<trComm_t> base[kMaxRanks] = {};
  // By another thread.
  enum class Abort { kNone, kBegun, kEnded };
  std::atomic<Abort> aborted[kMaxRanks] = {};
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<trUniqueId> ids;
};

// Never destroyed: the thread that listens goes on while the process ends.
Options& options = *new Options;
Orders& orders = *new Orders;
Holdings at_start;

class Rank {
 public:
  explicit Rank(int rank) : rank_(rank), calls_(options.least, options.most) {
    base_.rank = rank, base_.ranks = options.ranks;
    calls_.vary_ways();
  }

  void run() {
    if (options.phase == "init") {
      run_inits();
    } else if (begin()) {
      loop();
    }
    end();
  }

 private:
  // Reports a call's failure; `members` are the ranks of the communicator that it was on.
  bool passes(const Called& called, double began, const std::string& members) {
    if (called.is_wrong)
      say(rank_, "wrong %s element %zu is %d and not %d", called.name, called.wrong_at, called.got, called.due);
    if (called.result == trSuccess) return !called.is_wrong;
    std::string name = called.name;
    for (char& letter : name) letter = letter == ' ' ? '-' : letter;
    say(rank_, "error %d %.6f %s %s %s", called.result, began, name.c_str(), members.c_str(), trGetLastError(nullptr));
    return false;
  }

  template <typename Call>
  bool run_call(const Call& call, const std::string& members = "-") {
    const double began = now();
    return passes(call(), began, members);
  }

  bool make(const char* name, const std::vector<int>& members, trResult_t result, double began) {
    return passes({name, result}, began, joined(members));
  }

  bool begin() {
    std::unique_lock lock(orders.mutex);
    orders.changed.wait_for(lock, std::chrono::duration<double>(kTimeout), [] { return !orders.ids.empty(); });
    if (orders.ids.empty()) return false;
    const trUniqueId id = orders.ids[0];
    lock.unlock();
    if (!run_call([&] { return Called{"init", trCommInitRank(&base_.comm, options.ranks, id, rank_)}; })) {
      base_.comm = nullptr;
      return false;
    }
    orders.base[rank_] = base_.comm;
    return true;
  }

  // Until all agree to stop, or a call on the base communicator fails.
  void loop() {
    const bool many_at_once = options.phase == "small" || options.phase == "p2p" || options.phase == "alltoall";
    bool wants_end = false;
    for (uint64_t i = 0;; ++i) {
      if (obey(i)) return;
      for (uint64_t j = 0; j < (many_at_once ? 8 : 1); ++j)
        if (!step(options.seed + 1000 * i + 10 * j, &wants_end)) return fail();
      bool any = false;
      if (!run_call([&] { return calls_.agree(base_, wants_end || orders.stop, &any); })) return fail();
      if (any) {
        say(rank_, "ok");
        return;
      }
      heartbeat(i);
    }
  }

  void heartbeat(uint64_t i) {
    if (i == 1) say(rank_, "in");
    if (now() < next_heartbeat_) return;
    say(rank_, "heartbeat %llu", static_cast<unsigned long long>(i));
    next_heartbeat_ = now() + 0.1;
  }

  // False when the base communicator has failed. What fails on another one lets all agree to stop.
  bool step(uint64_t draw, bool* wants_end) {
    if (options.phase == "small" || options.phase == "large")
      return run_call([&] { return calls_.collective(base_, draw, other(draw)); });
    if (options.phase == "alltoall") return run_call([&] { return calls_.all_to_all(base_, draw, other(draw)); });
    if (options.phase == "p2p") return run_call([&] { return calls_.transfer(base_, draw, other(draw)); });
    if (options.phase == "grow") return on_grown(draw, wants_end);
    if (!on_subset(draw)) *wants_end = true;
    return true;
  }

  // How the next call differs. It is used once, by the first call that can differ so.
  Other other(uint64_t draw) {
    const bool is_collective = options.phase == "small" || options.phase == "large";
    if (other_ == Other::kNothing || (is_collective && !calls_.can_differ(base_, draw, other_))) return Other::kNothing;
    say(rank_, "did differ");
    return std::exchange(other_, Other::kNothing);
  }

  bool on_subset(uint64_t draw) {
    const Other differs = other(draw);
    if (differs == Other::kInPlaceOfCreation) return run_call([&] { return calls_.sum(base_, draw, 1); });
    Place sub;
    const double began = now();
    std::vector<int> members;
    trResult_t result = trSuccess;
    std::string call = options.phase == "destroy" ? "dup" : options.phase;
    if (differs == Other::kShrink) call = "shrink";
    if (call == "split") {
      const int colors = 1 + static_cast<int>(mixed(draw) % 2);
      members = members_where([&](int rank) { return rank % colors == rank_ % colors; });
      result = trCommSplit(base_.comm, rank_ % colors, 0, &sub.comm, nullptr);
    } else if (call == "shrink") {
      members = members_where([](int) { return true; });  // recover() is the one that leaves ranks out
      result = trCommShrink(base_.comm, nullptr, 0, &sub.comm, nullptr, 0);
    } else {
      members = members_where([](int) { return true; });
      result = trCommDup(base_.comm, &sub.comm);
    }
    if (!make(call.c_str(), members, result, began)) return false;
    const bool worked = use(&sub, members, draw);
    destroy(sub.comm, draw);
    return worked;
  }

  // All ranks but the last make a communicator, to which that one is added. False when the base communicator has failed.
  bool on_grown(uint64_t draw, bool* wants_end) {
    trUniqueId id{};
    if (rank_ == 0 && !run_call([&] { return Called{"id", trGetUniqueId(&id)}; }, "0")) *wants_end = true;
    if (!run_call([&] {
          return Called{"broadcast", trBroadcast(&id, &id, sizeof id, trUint8, 0, base_.comm, nullptr)};
        }))
      return false;
    const trUniqueId none{};
    if (std::memcmp(&id, &none, sizeof id) == 0) {  // rank 0 could make none
      *wants_end = true;
      return true;
    }
    const int last = options.ranks - 1;
    Place small, grown;
    const std::vector<int> all = members_where([](int) { return true; });
    double began = now();
    if (rank_ == last) {
      if (!make("init", all, trCommInitRank(&grown.comm, options.ranks, id, last), began)) *wants_end = true;
    } else {
      const auto others = members_where([&](int rank) { return rank != last; });
      if (make("shrink", others, trCommShrink(base_.comm, &last, 1, &small.comm, nullptr, 0), began)) {
        began = now();
        const trUniqueId* given = rank_ == 0 ? &id : nullptr;
        make("grow", all, trCommGrow(small.comm, options.ranks, given, &grown.comm, nullptr), began);
      }
    }
    if (grown.comm == nullptr || !use(&grown, all, draw)) *wants_end = true;
    for (trComm_t comm : {grown.comm, small.comm})
      if (comm != nullptr) destroy(comm, draw);
    return true;
  }

  template <typename Is>
  static std::vector<int> members_where(const Is& is) {
    std::vector<int> members;
    for (int rank = 0; rank < options.ranks; ++rank)
      if (is(rank)) members.push_back(rank);
    return members;
  }

  bool use(Place* sub, const std::vector<int>& members, uint64_t draw) {
    sub->ranks = static_cast<int>(members.size());
    for (int i = 0; i < sub->ranks; ++i)
      if (members[static_cast<size_t>(i)] == rank_) sub->rank = i;
    return run_call([&] { return calls_.sum(*sub, draw, 1 + mixed(draw) % (options.most / sizeof(int32_t))); },
                    joined(members));
  }

  // In the phase `destroy` the ranks leave at different moments.
  void destroy(trComm_t comm, uint64_t draw) {
    if (options.phase == "destroy") usleep(static_cast<useconds_t>(mixed(draw + static_cast<uint64_t>(rank_)) % 3000));
    const double began = now();
    const trResult_t result = trCommDestroy(comm);
    if (result != trSuccess || now() - began > 1) say(rank_, "destroyed %d %.3f", result, now() - began);
  }

  // A communicator after the other; the ids were made before the first.
  void run_inits() {
    bool any = false;
    for (size_t i = 0; i < options.ids && !any; ++i) {
      Place made = base_;
      const trUniqueId id = id_number(i);
      if (mixed(options.seed + i) % 2 == 0 && rank_ == options.ranks - 1) usleep(150'000);  // the others wait
      if (orders.exit) std::exit(0);
      if (!run_call([&] { return Called{"init", trCommInitRank(&made.comm, options.ranks, id, rank_)}; }))
        return fail();
      base_.comm = made.comm;
      if (!run_call([&] { return calls_.sum(made, i, 100); }) ||
          !run_call([&] { return calls_.agree(made, orders.stop, &any); }))
        return fail();
      destroy(std::exchange(base_.comm, nullptr), 0);
      heartbeat(i);
      if (i == 0) say(rank_, "in");
    }
    say(rank_, "ok");
  }

  static trUniqueId id_number(size_t i) {
    std::unique_lock lock(orders.mutex);
    orders.changed.wait_for(lock, std::chrono::duration<double>(kTimeout), [i] { return orders.ids.size() > i; });
    return orders.ids.size() > i ? orders.ids[i] : trUniqueId{};
  }

  // What the driver wants this rank to do to itself between two calls; true: it is gone.
  bool obey(uint64_t i) {
    if (orders.exit) std::exit(0);
    const int deed = orders.deed[rank_].exchange(0);
    if (deed == 'd') other_ = options.differs;
    if (deed != 'a' && deed != 'l') return false;
    orders.base[rank_] = nullptr;
    if (deed == 'a') {  // with something under way, which the others call, too: else it is a destroy
      trStreamCreate(&base_.stream);
      bool wants_end = false;
      step(options.seed + 1000 * i, &wants_end);
    }
    const trComm_t comm = std::exchange(base_.comm, nullptr);
    say(rank_, "did %s", deed == 'a' ? "abort" : "leave");
    const trResult_t result = deed == 'a' ? trCommAbort(comm) : trCommDestroy(comm);
    if (base_.stream != nullptr) trStreamDestroy(base_.stream);
    say(rank_, "gone %d", result);
    return true;
  }

  void fail() {
    if (orders.aborted[rank_] != Orders::Abort::kNone) base_.comm = nullptr;
    if (base_.comm == nullptr) return;
    int32_t value = 1;
    const trResult_t result = trAllReduce(&value, &value, 1, trInt32, trSum, base_.comm, nullptr);
    say(rank_, "again %d %s", result, trGetLastError(nullptr));
    if (!options.excluded.empty() && options.phase == "shrink") recover();
  }

  // The others go on without those that the driver will have ended.
  void recover() {
    Place rest;
    std::vector<int> members;
    for (int rank = 0; rank < options.ranks; ++rank)
      if (std::find(options.excluded.begin(), options.excluded.end(), rank) == options.excluded.end())
        members.push_back(rank);
    const double began = now();
    trResult_t result = trInvalidUsage;
    // A rank that has not seen the failure may be in the loop's own shrink, which excludes none: the sets differ, and
    // both call again.
    for (int attempt = 0; attempt < 3 && result == trInvalidUsage; ++attempt)
      result = trCommShrink(base_.comm, options.excluded.data(), static_cast<int>(options.excluded.size()), &rest.comm,
                            nullptr, TR_SHRINK_ABORT);
    if (!make("recover", members, result, began)) return;
    bool works = true;
    for (uint64_t i = 0; i < 3 && works; ++i) works = use(&rest, members, options.seed + i);
    if (works) say(rank_, "recovered");
    trCommDestroy(rest.comm);
  }

  void end() {
    orders.base[rank_] = nullptr;
    for (const double until = now() + kTimeout; orders.aborted[rank_] == Orders::Abort::kBegun && now() < until;)
      usleep(1000);
    if (const trResult_t result = calls_.destroy_stream(); result != trSuccess)
      say(rank_, "wrong trStreamDestroy: it returned %d", result);
    const double began = now();
    const trResult_t result = base_.comm == nullptr ? trSuccess : trCommDestroy(base_.comm);
    say(rank_, "destroyed %d %.3f", result, now() - began);
  }

  const int rank_;
  Calls calls_;
  Place base_;
  Other other_ = Other::kNothing;
  double next_heartbeat_ = 0;
};

// Commands of the driver, in a thread of their own: some hit the ranks in the middle of a call.
class Process {
 public:
  static void listen() {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string command, argument;
      words >> command >> argument;
      obey(command, argument);
    }
    say(options.own[0], "driver gone");
    _exit(3);  // the driver has ended without this process
  }

 private:
  static void obey(const std::string& command, const std::string& argument) {
    const int own = options.own[0], rank = std::atoi(argument.c_str()) % kMaxRanks;
    if (command == "ids") return take_ids(argument);
    if (command == "stop") orders.stop = true;
    if (command == "finish") orders.finish = true;
    if (command == "exit") orders.exit = true;
    if (command == "_exit") _exit(0);
    const bool creates = options.phase == "split" || options.phase == "shrink" || options.phase == "destroy";
    if (command == "abort" && creates) return abort_from_outside(rank);
    if (command == "abort" || command == "leave" || command == "differ") orders.deed[rank] = command[0];
    if (command == "revoke") {
      if (const trComm_t comm = orders.base[rank]) say(rank, "did revoke %d", trCommRevoke(comm));
    }
    if (command == "close-sockets") say(own, "did close %d", close_sockets());
    if (command == "shutdown-sockets") say(own, "did shutdown %d", shut_down_sockets());
    if (command == "reset-sockets") say(own, "did reset %d", reset_sockets());
    if (command == "fork") say(own, "did fork %d", leave_child());
    if (command == "no-descriptors") say(own, "did no-descriptors %d", forbid_descriptors());
    if (command == "no-memory") say(own, "did no-memory %d", forbid_memory());
    if (command == "allow") allow_all();
  }

  // While the rank is in a creation, or between two.
  static void abort_from_outside(int rank) {
    orders.aborted[rank] = Orders::Abort::kBegun;
    say(rank, "did abort");
    if (const trComm_t comm = orders.base[rank].exchange(nullptr)) say(rank, "gone %d", trCommAbort(comm));
    orders.aborted[rank] = Orders::Abort::kEnded;
  }

  static void take_ids(const std::string& text) {
    std::istringstream stream(text);
    std::lock_guard lock(orders.mutex);
    for (std::string part; std::getline(stream, part, ',');) orders.ids.push_back(from_hex(part));
    orders.changed.notify_all();
  }
};

bool make_ids() {
  std::string text;
  std::lock_guard lock(orders.mutex);
  for (size_t i = 0; i < options.ids; ++i) {
    trUniqueId id;
    if (trGetUniqueId(&id) != trSuccess) {
      say(options.own[0], "error 2 %.6f id - %s", now(), trGetLastError(nullptr));
      return false;
    }
    orders.ids.push_back(id);
    if (i != 0) text += ',';
    text += in_hex(id);
  }
  // Longer than a line of say(); no other thread prints yet.
  text = std::to_string(now()) + " " + std::to_string(options.own[0]) + " id " + text + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

bool parse(int argc, char** argv) {
  std::map<std::string, std::string> values;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) return false;
    values[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  const auto number = [&](const char* key, size_t otherwise) {
    return values.count(key) != 0 ? static_cast<size_t>(std::atoll(values[key].c_str())) : otherwise;
  };
  options.ranks = static_cast<int>(number("ranks", 0));
  options.own = numbers(values["own"]);
  options.excluded = numbers(values["excluded"]);
  options.id = values["id"];
  options.phase = values["phase"];
  options.seed = number("seed", 0);
  options.least = number("least", 8);
  options.most = number("most", 4096);
  options.ids = number("ids", 1);
  options.wait = number("wait", 0) != 0;
  for (const auto& [name, other] : kOthers)
    if (values["differs"] == name) options.differs = other;
  return options.ranks >= 1 && options.ranks <= kMaxRanks && !options.own.empty() && options.least <= options.most;
}

int main_of_ranks() {
  say(options.own[0], "ready %d", getpid());
  if (options.id == "make" && !make_ids()) return 1;
  if (options.phase == "relay") {  // it makes the id and holds no rank
    while (!orders.finish) usleep(10'000);
    say(options.own[0], "end");
    return 0;
  }
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank : options.own) ranks.push_back(std::make_unique<Rank>(rank));
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back([&ranks, i] { ranks[i]->run(); });
  ranks[0]->run();
  for (std::thread& thread : threads) thread.join();
  for (const double until = now() + kTimeout; options.wait && !orders.finish && now() < until;) usleep(5000);
  allow_all();
  // Rendezvous roots of ids that no ranks will use stay.
  say_what_is_left(options.own[0], at_start, options.ids > 1 && options.id == "make" ? options.ranks : 0);
  say(options.own[0], "end");
  return 0;
}

}  // namespace
}  // namespace faults

int main(int argc, char** argv) {
  using namespace faults;
  if (!parse(argc, argv)) {
    std::fprintf(stderr, "usage: faults_rank ranks=N own=A[,B...] id=make|read phase=NAME ... (see rank.cpp)\n");
    return 2;
  }
  std::thread(Process::listen).detach();
  usleep(1000);
  start_streams();
  at_start = holdings();
  return main_of_ranks();
}
