// SPDX-License-Identifier: Apache-2.0
// The modules of this build, opened as another build of the library would: they refuse, and name both builds.
#include "transport/module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace treering {
namespace {

class Module : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(OfThisBuild, Module, ::testing::Values(TREERING_MODULES),
                         [](const auto& info) { return fmt::format("Number{}", info.index); });

TEST_P(Module, RefusesALibraryOfAnotherBuild) {
  void* const module = dlopen(GetParam(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(module, nullptr) << dlerror();
  const auto open = reinterpret_cast<OpenTransportModule>(dlsym(module, kOpenTransportModule));
  ASSERT_NE(open, nullptr);
  // The same, but for the number of the interface.
  std::string other = module_build();
  const std::string number = fmt::format(".{} by ", kModuleInterface);
  const size_t at = other.find(number);
  ASSERT_NE(at, std::string::npos) << other;
  other.replace(at, number.size(), fmt::format(".{} by ", kModuleInterface + 1));
  std::string why_not;
  EXPECT_EQ(open(other.c_str(), TransportSetup{}, &why_not), nullptr);
  EXPECT_NE(why_not.find(other), std::string::npos) << why_not;
  EXPECT_NE(why_not.find(module_build()), std::string::npos) << why_not;
}

TEST(ModuleFile, ThatIsNoneIsNamed) {
  setenv("TREERING_UCX_LIBRARY", "libdl.so.2", 1);
  const auto transport = open_module("ucx", TransportSetup{.rank = 1});
  unsetenv("TREERING_UCX_LIBRARY");
  const Status status = transport->prove(0);
  EXPECT_EQ(status.message(), "libtreering-ucx.so.0 has no treering_open_transport");
}

}  // namespace
}  // namespace treering
