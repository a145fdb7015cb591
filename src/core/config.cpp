#include "core/config.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace treering {
namespace {

// Parses a number of `unit`s in [low, high] and multiplies it by `scale`.
Status parse_integer(const std::string& text, const char* option, long low, long high, double scale, int* result) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= static_cast<double>(low)) ||
      !(value <= static_cast<double>(high)))
    return {trInvalidArgument, fmt::format("{} is '{}'; give a number from {} to {}", option, text, low, high)};
  *result = static_cast<int>(value * scale);
  return {};
}

Status parse_bool(const std::string& text, const char* option, bool* result) {
  if (text != "0" && text != "1")
    return {trInvalidArgument, fmt::format("{} is '{}'; give 0 or 1", option, text)};
  *result = text == "1";
  return {};
}

constexpr int kMaxChannels = 4;
constexpr int kMinStaging = 64 << 10;
constexpr int kMaxStaging = 256 << 20;

const OptionRow kOptions[] = {
    {"timeout_ms", "TREERING_TIMEOUT", "seconds, 0 to 2000000; 0 = none", "300",
     "Deadline of every wait of a communicator. When it passes, every rank returns an error that names the rank that "
     "was waited for. In trConfig_t the unit is milliseconds.",
     true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_TIMEOUT", 0, 2'000'000, 1000, &config->timeout_ms);
     },
     [](const Config& config) { return fmt::format("{} s", config.timeout_ms / 1000.0); }},
    {"algorithm", "TREERING_ALGO", "the name of an algorithm", "chosen by the cost model",
     "Forces one algorithm for every size. An unknown name is an error that lists the known ones.", true,
     [](const std::string& text, Config* config) {
       config->algorithm = text;
       return Status();
     },
     [](const Config& config) { return config.algorithm.empty() ? std::string("chosen") : config.algorithm; }},
    {"channels", "TREERING_CHANNELS", "0 to 4; 0 = chosen", "0",
     "Independent pipelines of a collective. While one waits for a peer, another moves data.", true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_CHANNELS", 0, kMaxChannels, 1, &config->channels);
     },
     [](const Config& config) { return std::to_string(config.channels); }},
    {"staging_bytes", "TREERING_STAGING", "bytes, 0 or 65536 to 268435456; 0 = chosen", "0",
     "Shared memory of each rank through which ordinary (not registered) buffers are exchanged. It should stay in "
     "cache.",
     true,
     [](const std::string& text, Config* config) -> Status {
       if (text == "0") return config->staging_bytes = 0, Status();
       return parse_integer(text, "TREERING_STAGING", kMinStaging, kMaxStaging, 1, &config->staging_bytes);
     },
     [](const Config& config) { return std::to_string(config.staging_bytes); }},
    {"wide_partials", "TREERING_WIDE_PARTIALS", "0 or 1", "0",
     "1: partial sums of 16-bit floats travel as float32, so that every algorithm rounds once.", true,
     [](const std::string& text, Config* config) {
       return parse_bool(text, "TREERING_WIDE_PARTIALS", &config->wide_partials);
     },
     [](const Config& config) { return std::string(config.wide_partials ? "1" : "0"); }},
    {"transports", "TREERING_TRANSPORTS", "list of in-process, shared-memory, cma; `^` in front excludes", "all",
     "Transports that a pair of ranks may use; the first that is proved to work at init is used.", true,
     [](const std::string& text, Config* config) {
       config->transports = text;
       return Status();
     },
     [](const Config& config) { return config.transports.empty() ? std::string("all") : config.transports; }},
    {"name", nullptr, "text", "none", "Name of the communicator in messages.", false,
     [](const std::string& text, Config* config) {
       config->name = text;
       return Status();
     },
     [](const Config& config) { return config.name; }},
};

const OptionRow& row_named(const char* name) {
  for (const OptionRow& row : kOptions)
    if (std::strcmp(row.name, name) == 0) return row;
  std::abort();
}

// Fields that the caller's (perhaps older, shorter) struct does not have stay undefined.
Status read_user_config(const trConfig_t* user, trConfig_t* full) {
  *full = TR_CONFIG_INITIALIZER;
  if (user == nullptr) return {};
  if (user->magic != TR_CONFIG_MAGIC)
    return {trInvalidArgument, fmt::format("config->magic is {:#x}, not {:#x}: initialise the struct with "
                                           "TR_CONFIG_INITIALIZER",
                                           user->magic, TR_CONFIG_MAGIC)};
  if (user->size < offsetof(trConfig_t, timeout_ms))
    return {trInvalidArgument, fmt::format("config->size is {}: initialise the struct with TR_CONFIG_INITIALIZER",
                                           user->size)};
  std::memcpy(full, user, std::min(user->size, sizeof(*full)));
  return {};
}

}  // namespace

std::span<const OptionRow> option_table() { return kOptions; }

Status resolve_config(const trConfig_t* user, Config* config) {
  *config = Config();
  for (const OptionRow& row : kOptions) {
    const char* text = row.environment ? std::getenv(row.environment) : nullptr;
    if (text != nullptr && *text != '\0') TR_RETURN_IF_ERROR(row.parse(text, config));
  }
  trConfig_t full;
  TR_RETURN_IF_ERROR(read_user_config(user, &full));
  if (full.timeout_ms != TR_CONFIG_UNDEF_INT) {
    if (full.timeout_ms < 0)
      return {trInvalidArgument, fmt::format("config->timeout_ms is {}; give 0 (none) or more", full.timeout_ms)};
    config->timeout_ms = full.timeout_ms;
  }
  auto apply = [&](const char* name, int value) -> Status {
    if (value == TR_CONFIG_UNDEF_INT) return {};
    Status status = row_named(name).parse(std::to_string(value), config);
    if (status.ok()) return {};
    return {status.code(), fmt::format("config->{} (or {})", name, status.message())};
  };
  TR_RETURN_IF_ERROR(apply("wide_partials", full.wide_partials));
  TR_RETURN_IF_ERROR(apply("channels", full.channels));
  TR_RETURN_IF_ERROR(apply("staging_bytes", full.staging_bytes));
  if (full.algorithm != nullptr) config->algorithm = full.algorithm;
  if (full.transports != nullptr) config->transports = full.transports;
  if (full.name != nullptr) config->name = full.name;
  return {};
}

std::vector<std::string> agreed_settings(const Config& config) {
  std::vector<std::string> settings;
  for (const OptionRow& row : kOptions)
    if (row.must_agree) settings.push_back(fmt::format("{}={}", row.name, row.print(config)));
  return settings;
}

std::string options_markdown() {
  std::string text =
      "# Options\n\nGenerated from the table in src/core/config.cpp. A field of `trConfig_t` wins over the environment, "
      "which wins over the default.\n\n| option | environment | values | default | meaning |\n|---|---|---|---|---|\n";
  for (const OptionRow& row : kOptions)
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name,
                        row.environment ? fmt::format("`{}`", row.environment) : "", row.values, row.default_text,
                        row.documentation);
  text +=
      "\nOf the whole process, read once: `TREERING_DEBUG` (`ERROR`, `WARN` (default), `INFO`, `TRACE`) sets what is "
      "logged, `TREERING_DEBUG_FILE` where to (default: standard error; `%p` becomes the process id).\n";
  return text;
}

}  // namespace treering
