// SPDX-License-Identifier: Apache-2.0
#include "neighbours.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

namespace treering::pytorch {
namespace {

std::string key_of(int rank) { return "treering/process/" + std::to_string(rank); }

// Processes of the same place see one another under their numbers.
std::string place() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 64> names{};
  const ssize_t length = readlink("/proc/self/ns/pid", names.data(), names.size());
  return boot + "/" + std::string(names.data(), length < 0 ? 0 : static_cast<size_t>(length));
}

// When it began, in ticks since the boot; empty where it has ended.
std::string start_of(long pid) {
  std::string line;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream fields(line.substr(name_end + 1));
  std::string state, field;
  fields >> state;
  if (state == "Z" || state == "X") return "";
  constexpr int kFieldsBetween = 19;  // the fields of proc(5) between the state and starttime
  for (int i = 0; i < kFieldsBetween; ++i) fields >> field;
  return field;
}

}  // namespace

void publish_process(c10d::Store& store, int rank) {
  store.set(key_of(rank), c10::str(place(), " ", getpid(), " ", start_of(getpid())));
}

std::string death_of(c10d::Store& store, int rank) {
  if (!store.check({key_of(rank)})) return "";
  const std::vector<uint8_t> value = store.get(key_of(rank));
  std::istringstream text(std::string(value.begin(), value.end()));
  std::string its_place, start;
  long pid = 0;
  text >> its_place >> pid >> start;
  if (its_place != place() || start_of(pid) == start) return "";
  return c10::str("rank ", rank, " (pid ", pid, ") has ended");
}

}  // namespace treering::pytorch
