// SPDX-License-Identifier: Apache-2.0
#include "shim/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/process.h"
#include "shim/include/nccl.h"
#include "shim/variables.h"

namespace treering::nccl {
namespace {

struct Name {
  std::string_view name;
  uint32_t bits;
};
// The order is that of NCCL's bits; those without lines of ours are known words all the same.
constexpr Name kSubsystems[] = {
    {"INIT", kInit},     {"COLL", kColl},     {"P2P", kP2p},           {"SHM", 1u << 3},  {"NET", 1u << 4},
    {"GRAPH", kGraph},   {"TUNING", kTuning}, {"ENV", kEnv},           {"ALLOC", kAlloc}, {"CALL", 1u << 9},
    {"PROXY", 1u << 10}, {"NVLS", 1u << 11},  {"BOOTSTRAP", 1u << 12}, {"REG", kReg},     {"PROFILE", 1u << 14},
    {"RAS", 1u << 15},   {"ALL", ~0u}};
constexpr Name kLevels[] = {{"VERSION", 1}, {"WARN", 2}, {"INFO", 3}, {"ABORT", 4}, {"TRACE", 5}};
constexpr uint32_t kDefaultSubsystems = kInit | kEnv | 1u << 12;

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

uint32_t subsystems_of(const std::string& text) {
  if (text.empty()) return kDefaultSubsystems;
  const bool inverted = text[0] == '^';
  uint32_t bits = 0;
  for (const std::string& word : split_list(inverted ? text.substr(1) : text, ','))
    for (const Name& row : kSubsystems)
      if (row.name == upper(word)) bits |= row.bits;
  return inverted ? ~bits : bits;
}

class Log {
 public:
  explicit Log(const std::string& level_text) {
    if (level_text.empty()) return;
    for (const Name& row : kLevels)
      if (row.name == upper(level_text)) level = static_cast<Level>(row.bits);
    subsystems = subsystems_of(variable("NCCL_DEBUG_SUBSYS"));
    logger_ = std::make_unique<spdlog::logger>("nccl", make_sink());
    logger_->set_pattern("%v");
    logger_->set_level(spdlog::level::trace);
    logger_->flush_on(spdlog::level::trace);
    if (level == Level::kNone && upper(level_text) != "NONE")
      line(fmt::format("NCCL WARN NCCL_DEBUG is '{}'; known are VERSION, WARN, INFO, ABORT, TRACE", level_text), -1);
  }

  void line(const std::string& text, int device) {
    if (logger_ == nullptr) return;
    const std::string place = device < 0 ? "" : fmt::format("[{}] ", device);
    logger_->info("{}:{}:{} {}{}", short_host_name(), getpid(), syscall(SYS_gettid), place, text);
  }
  void bare(const std::string& text) {
    if (logger_ != nullptr) logger_->info("{}", text);
  }

  Level level = Level::kNone;
  uint32_t subsystems = 0;

 private:
  static spdlog::sink_ptr make_sink() {
    const std::string pattern = variable("NCCL_DEBUG_FILE");
    if (pattern.empty()) return std::make_shared<spdlog::sinks::stdout_sink_mt>();
    std::string name;
    for (size_t i = 0; i < pattern.size(); ++i) {
      const std::string_view two = std::string_view(pattern).substr(i, 2);
      if (two == "%h" || two == "%p" || two == "%%") {
        if (two == "%h")
          name += short_host_name();
        else if (two == "%p")
          name += std::to_string(getpid());
        else
          name += '%';
        ++i;
      } else {
        name += pattern[i];
      }
    }
    try {
      return std::make_shared<spdlog::sinks::basic_file_sink_mt>(name, /*truncate=*/true);
    } catch (const spdlog::spdlog_ex& error) {
      fmt::print(stderr, "NCCL_DEBUG_FILE={}: {}; logging to standard output\n", pattern, error.what());
      return std::make_shared<spdlog::sinks::stdout_sink_mt>();
    }
  }

  std::unique_ptr<spdlog::logger> logger_;
};

// A log is never destroyed: threads may write while it is replaced or while the process ends.
std::atomic<Log*> current{nullptr};
std::mutex making;

Log& log() {
  if (Log* made = current.load(std::memory_order_acquire)) return *made;
  std::lock_guard lock(making);
  if (Log* made = current.load()) return *made;
  static auto* all = new std::vector<Log*>;
  all->push_back(new Log(variable("NCCL_DEBUG")));
  current.store(all->back(), std::memory_order_release);
  return *all->back();
}

}  // namespace

bool log_info_enabled(Subsystem subsystem) {
  return log().level >= Level::kInfo && (log().subsystems & subsystem) != 0;
}
void log_info(Subsystem subsystem, int device, const std::string& text) {
  if (log_info_enabled(subsystem)) log().line("NCCL INFO " + text, device);
}
void log_warn(const std::string& text) {
  if (log().level >= Level::kWarn) log().line("NCCL WARN " + text, -1);
}
void log_version() {
  static std::atomic<bool> said{false};
  if (log().level == Level::kNone || said.exchange(true)) return;
  log().bare(fmt::format("NCCL version {}.{}.{}+treering" TREERING_VERSION_STRING, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));
}
void reset_log() {
  std::lock_guard lock(making);
  current.store(nullptr, std::memory_order_release);
}

}  // namespace treering::nccl
