// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <cmath>

#include "errors.h"

namespace treering::python {
namespace {

struct Number {
  const char* name;
  int trConfig_t::*field;
};
constexpr Number kNumbers[] = {
    {"wide_partials", &trConfig_t::wide_partials}, {"channels", &trConfig_t::channels},
    {"staging_bytes", &trConfig_t::staging_bytes}, {"deterministic", &trConfig_t::deterministic},
    {"fusion_bytes", &trConfig_t::fusion_bytes},   {"fusion_alignment", &trConfig_t::fusion_alignment},
    {"link_mbps", &trConfig_t::link_mbps},         {"device", &trConfig_t::device},
    {"device_blocks", &trConfig_t::device_blocks}, {"device_piece_bytes", &trConfig_t::device_piece_bytes},
};

struct Text {
  const char* name;
  const char* trConfig_t::*field;
};
constexpr Text kTexts[] = {
    {"algorithm", &trConfig_t::algorithm},
    {"transports", &trConfig_t::transports},
    {"name", &trConfig_t::name},
    {"wire", &trConfig_t::wire},
    {"device_protocol", &trConfig_t::device_protocol},
};

std::string names() {
  std::string all = "timeout";
  for (const Number& number : kNumbers) all += std::string(", ") + number.name;
  for (const Text& text : kTexts) all += std::string(", ") + text.name;
  return all;
}

}  // namespace

Config::Config(const char* call, const nb::dict& settings) {
  for (auto [name, value] : settings)
    if (!value.is_none()) set(call, nb::cast<std::string>(name), value);
}

void Config::set(const char* call, const std::string& name, nb::handle value) {
  if (name == "timeout") {
    double seconds = 0;
    if (!nb::try_cast(value, seconds)) refuse_type(call, "timeout is " + kind_of(value) + "; seconds are wanted");
    if (!(seconds >= 0 && seconds < INT_MAX / 1000))
      refuse(call, "timeout is " + std::to_string(seconds) + "; seconds from 0 (none) are wanted");
    config_.timeout_ms = static_cast<int>(std::ceil(seconds * 1000));
    return;
  }
  for (const Number& number : kNumbers) {
    if (name != number.name) continue;
    if (!nb::try_cast(nb::object(nb::int_(nb::borrow(value))), config_.*number.field))
      refuse_type(call, name + " is " + kind_of(value) + "; a whole number is wanted");
    return;
  }
  for (const Text& text : kTexts) {
    if (name != text.name) continue;
    if (!nb::isinstance<nb::str>(value)) refuse_type(call, name + " is " + kind_of(value) + "; a text is wanted");
    config_.*text.field = texts_.emplace_back(nb::cast<std::string>(value)).c_str();
    return;
  }
  refuse_type(call, "there is no setting " + name + "; settings are " + names());
}

}  // namespace treering::python
