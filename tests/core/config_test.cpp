// SPDX-License-Identifier: Apache-2.0
// Values of environment variables that are refused: the error names the variable, the value, what is taken with its
// unit, and an example that is taken.
#include "core/config.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace treering {
namespace {

Status with(const char* variable, const char* value, Config* config) {
  setenv(variable, value, 1);
  const Status status = resolve_config(nullptr, config);
  unsetenv(variable);
  return status;
}

TEST(Config, RefusedValuesAreNamedWithUnitAndExample) {
  const struct {
    const char* variable;
    const char* value;
    const char* unit;
    const char* example;
  } cases[] = {
      {"TREERING_TIMEOUT", "5s", "seconds, 0 to 2000000", "TREERING_TIMEOUT=60"},
      {"TREERING_TIMEOUT", "-1", "seconds, 0 to 2000000", "TREERING_TIMEOUT=60"},
      {"TREERING_STAGING", "1M", "bytes, 0 or 65536 to 268435456", "TREERING_STAGING=1048576"},
      {"TREERING_STAGING", "100", "bytes, 0 or 65536 to 268435456", "TREERING_STAGING=1048576"},
      {"TREERING_FUSION", "64MB", "bytes, 0 to 1073741824", "TREERING_FUSION=67108864"},
      {"TREERING_FUSION_ALIGNMENT", "48", "bytes, a power of two from 16 to 4096", "TREERING_FUSION_ALIGNMENT=64"},
      {"TREERING_LINK", "25", "Gbit/s from 0.001", "TREERING_LINK=25,10"},
      {"TREERING_LINK", "0,10", "Gbit/s from 0.001", "TREERING_LINK=25,10"},
      {"TREERING_LINK", "25,10us", "Gbit/s from 0.001", "TREERING_LINK=25,10"},
      {"TREERING_LINK_MBPS", "1G", "Mbit/s, 0 to 1000000", "TREERING_LINK_MBPS=1000"},
      {"TREERING_DEVICE_PIECE", "4M", "bytes, 65536 to 1073741824", "TREERING_DEVICE_PIECE=4194304"},
      {"TREERING_CHANNELS", "1.5", "0 to 4", "TREERING_CHANNELS=2"},
      {"TREERING_CHANNELS", "many", "0 to 4", "TREERING_CHANNELS=2"},
      {"TREERING_DETERMINISTIC", "yes", "0 or 1", "TREERING_DETERMINISTIC=1"},
      {"TREERING_WIRE", "half", "fp16, bf16, fp8-e4m3 or fp8-e5m2", "TREERING_WIRE=bf16"},
      {"TREERING_SOCKET_FAMILY", "6", "any, ipv4 or ipv6", "TREERING_SOCKET_FAMILY=ipv4"},
      {"TREERING_PORT", "70000", "from 1 to 65535", "TREERING_PORT=20000-20099"},
  };
  for (const auto& one : cases) {
    Config config;
    const Status status = with(one.variable, one.value, &config);
    EXPECT_EQ(status.code(), trInvalidArgument) << one.variable << "=" << one.value;
    const std::string begin = std::string(one.variable) + " is '" + one.value + "'; give ";
    EXPECT_EQ(status.message().find(begin), 0u) << status.message();
    for (const char* part : {one.unit, one.example})
      EXPECT_NE(status.message().find(part), std::string::npos) << "'" << part << "' is not in: " << status.message();
  }
}

TEST(Config, EveryExampleIsTaken) {
  for (const OptionRow& row : option_table()) {
    if (row.environment == nullptr) continue;
    Config config;
    EXPECT_TRUE(with(row.environment, row.example, &config).ok()) << row.environment << "=" << row.example;
  }
}

TEST(Config, TimesMayHaveAFractionAndAreNoneOnlyAtZero) {
  const struct {
    const char* text;
    int milliseconds;
  } cases[] = {{"0.5", 500}, {"1.001", 1001}, {"0.0001", 1}, {"0", 0}, {"2000000", 2'000'000'000}};
  for (const auto& one : cases) {
    Config config;
    EXPECT_TRUE(with("TREERING_TIMEOUT", one.text, &config).ok()) << one.text;
    EXPECT_EQ(config.timeout_ms, one.milliseconds) << one.text;
  }
}

TEST(Config, AnEmptyVariableCountsAsNotSet) {
  for (const OptionRow& row : option_table()) {
    if (row.environment == nullptr) continue;
    Config config;
    EXPECT_TRUE(with(row.environment, "", &config).ok()) << row.environment;
    EXPECT_EQ(row.print(config), row.print(Config())) << row.environment;
  }
}

TEST(Config, OfALinkRateAndLatencyMayStandApart) {
  for (const char* text : {"2.5,10", "2.5, 10"}) {
    setenv("TREERING_LINK", text, 1);
    Config config;
    EXPECT_TRUE(resolve_config(nullptr, &config).ok()) << text;
    EXPECT_EQ(config.link_gbps, 2.5);
    EXPECT_EQ(config.link_us, 10);
  }
  unsetenv("TREERING_LINK");
}

TEST(Config, FieldsOfTheStructAreNamedAsSuch) {
  trConfig_t user = TR_CONFIG_INITIALIZER;
  user.staging_bytes = 100;
  Config config;
  EXPECT_EQ(resolve_config(&user, &config).message(),
            "config->staging_bytes is 100; give bytes, 0 or 65536 to 268435456; 0 = chosen");
  user = TR_CONFIG_INITIALIZER;
  user.timeout_ms = -5;
  EXPECT_EQ(resolve_config(&user, &config).message(), "config->timeout_ms is -5; give milliseconds, 0 (none) or more");
}

}  // namespace
}  // namespace treering
