// SPDX-License-Identifier: Apache-2.0
// The collective that additions_test.py has added has a row, an algorithm that is right, and a row of the perf tools.
#include "../../tools/perf/collective.h"

#include "verified.h"

using namespace treering;

// The library's own is compiled, but not linked.
extern "C" trResult_t trShift(const void*, void*, size_t, trDataType_t, trComm_t, trStream_t) { return trSuccess; }

namespace {

bool perf_tools_have_it() {
  const perf::CollectiveCase* row = perf::find_case("Shift");
  if (row == nullptr || row->id != trCollShift) return false;
  const perf::Shape shape = perf::shape_of(*row, 2, 4, 0, 100, 1);
  const auto blocks = perf::expected_blocks(*row, shape, 2, 4, 0, 100, 1);
  return shape.input == 100 && shape.output == 100 && blocks.size() == 1 && blocks[0].source == 1 &&
         blocks[0].count == 100 && row->call(shape, {}) == trSuccess;
}

}  // namespace

int main() {
  const CollectiveInfo* row = find_collective("shift");
  if (row == nullptr || row->collective != Collective::kShift || static_cast<int>(row->collective) != trCollShift)
    return std::fprintf(stderr, "the table has no shift\n"), 1;
  if (!is_verified(Collective::kShift, "direct")) return 1;
  if (!perf_tools_have_it()) return std::fprintf(stderr, "the perf tools have no shift, or a wrong one\n"), 1;
  return 0;
}
