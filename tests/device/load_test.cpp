// SPDX-License-Identifier: Apache-2.0
// libtreering-cuda on the machine as it is, and where there is no driver, or one that it cannot use.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "device/fake_backend.h"

namespace treering::cuda {
namespace {

TEST(Load, SaysWhyThereIsNoDevice) {
  unsetenv("TREERING_CUDA_DRIVER");
  std::string why_not;
  // In a process of its own: a machine that has a GPU would keep its driver.
  EXPECT_EXIT(
      {
        const DeviceBackend* backend = open_cuda_backend(&why_not);
        std::fprintf(stderr, "%s", why_not.c_str());
        const bool explained = backend != nullptr ? backend->count() > 0 : why_not.size() > 10 && why_not != "unset";
        std::_Exit(explained ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Load, NamesTheDriverThatIsMissing) {
  setenv("TREERING_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
  std::string why_not;
  EXPECT_EQ(open_cuda_backend(&why_not), nullptr);
  EXPECT_NE(why_not.find("no CUDA driver: /nonexistent/libcuda.so.1"), std::string::npos) << why_not;
}

TEST(Load, NamesAFunctionThatIsMissing) {
  setenv("TREERING_CUDA_DRIVER", "libm.so.6", 1);
  std::string why_not;
  EXPECT_EQ(open_cuda_backend(&why_not), nullptr);
  EXPECT_NE(why_not.find("libm.so.6 has no cuInit"), std::string::npos) << why_not;
}

TEST(Load, AnotherBuildIsRefused) {
  std::string why_not;
  EXPECT_EQ(open_cuda_backend(&why_not, kDeviceInterface + 1), nullptr);
  EXPECT_NE(why_not.find("different builds"), std::string::npos) << why_not;
}

// Every failure of the start is told, and may be tried again.
TEST(Load, StartsWhenTheDriverDoes) {
  unsetenv("TREERING_CUDA_DRIVER");
  FakeCuda& fake = fake_cuda();
  std::string why_not;
  fake.fail_next("cuInit", CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(open_cuda_backend(&why_not), nullptr);
  EXPECT_EQ(why_not, "cuInit: CUDA_ERROR_NO_DEVICE (as the fake driver says)");

  fake.fail_next("cuDriverGetVersion", CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(open_cuda_backend(&why_not), nullptr);
  EXPECT_NE(why_not.find("cuDriverGetVersion: CUDA_ERROR_INVALID_VALUE"), std::string::npos) << why_not;

  fake.driver_version = CUDA_VERSION / 1000 * 1000 - 980;  // the last but one of the major version before
  EXPECT_EQ(open_cuda_backend(&why_not), nullptr);
  EXPECT_NE(why_not.find("need a driver of CUDA " + std::to_string(CUDA_VERSION / 1000) + ".0"), std::string::npos)
      << why_not;
  fake.driver_version = CUDA_VERSION / 1000 * 1000;

  fake.fail_next("cuDeviceGetCount", CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(open_cuda_backend(&why_not), nullptr);
  EXPECT_NE(why_not.find("cuDeviceGetCount"), std::string::npos) << why_not;

  fake.devices = 0;
  EXPECT_EQ(open_cuda_backend(&why_not), nullptr);
  EXPECT_EQ(why_not, "the CUDA driver sees no GPU");
  fake.devices = 2;

  DeviceBackend* backend = open_cuda_backend(&why_not);
  ASSERT_NE(backend, nullptr) << why_not;
  EXPECT_EQ(why_not, "");
  EXPECT_EQ(backend->count(), 2);
  EXPECT_EQ(open_cuda_backend(&why_not), backend);
}

TEST(Load, ReasonsAreCutToWhatTheCallerHas) {
  void* library = dlopen(TREERING_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto open = reinterpret_cast<OpenDeviceBackend>(dlsym(library, kOpenDeviceBackend));
  ASSERT_NE(open, nullptr);
  char reason[8];
  std::memset(reason, 'x', sizeof reason);
  EXPECT_EQ(open(0, reason, 4), nullptr);
  EXPECT_STREQ(reason, "the");
  EXPECT_EQ(reason[4], 'x');
  EXPECT_EQ(open(0, nullptr, 0), nullptr);
}

}  // namespace
}  // namespace treering::cuda
