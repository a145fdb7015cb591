// SPDX-License-Identifier: Apache-2.0
/* Operations of one's own: a sum with a factor for each rank, and a function. Three ranks. */
#include "ranks.h"

/* 2 x 2 matrices, four elements each: the product does not commute. Blocks begin at multiples of 64 bytes, so that
   16 matrices of float32 and no fraction of one lie in each. */
static void multiply(const void* in, void* inout, size_t count, trDataType_t datatype, void* context) {
  const float* left = in;
  float* right = inout;
  (void)datatype, (void)context;
  for (size_t i = 0; i + 4 <= count; i += 4) {
    const float a = left[i] * right[i] + left[i + 1] * right[i + 2];
    const float b = left[i] * right[i + 1] + left[i + 1] * right[i + 3];
    const float c = left[i + 2] * right[i] + left[i + 3] * right[i + 2];
    const float d = left[i + 2] * right[i + 1] + left[i + 3] * right[i + 3];
    right[i] = a, right[i + 1] = b, right[i + 2] = c, right[i + 3] = d;
  }
}

static void ranks(trComm_t comm, int rank, int nranks) {
  const float weight = 1.0f / (float)(rank + 1); /* each rank its own */
  trRedOp_t weighted;
  float value = 6.0f;
  CHECK(trRedOpCreatePreMulSum(&weighted, &weight, trFloat32, comm));
  CHECK(trAllReduce(&value, &value, 1, trFloat32, weighted, comm, NULL));
  EXPECT(value == 6.0f + 3.0f + 2.0f);
  CHECK(trRedOpDestroy(weighted, comm));

  trRedOp_t product;
  float matrix[4] = {1.0f, (float)(rank + 1), 0.0f, 1.0f};
  if (rank == nranks - 1) matrix[1] = 0.0f, matrix[3] = 2.0f;
  CHECK(trRedOpCreateUser(&product, multiply, NULL, /*commutative=*/0, comm));
  CHECK(trAllReduce(matrix, matrix, 4, trFloat32, product, comm, NULL));
  EXPECT(matrix[0] == 1.0f && matrix[1] == 6.0f && matrix[2] == 0.0f && matrix[3] == 2.0f);
  CHECK(trRedOpDestroy(product, comm));
}

int main(void) {
  run_ranks(3, ranks);
  return 0;
}
