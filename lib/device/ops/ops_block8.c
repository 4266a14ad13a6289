/* ops_block8.c - block-wise 8-bit floats: the ops that convert to and from them. */
#include "device/dev/dev.h"
#include "device/ops/check.h"
#include "device/ops/dynamic8.h"

static int check_block8(const struct vfm_block8 *a, struct vfm_err *err)
{
	int64_t n;

	CHECK("block8", x, F32, -1);
	n = a->x.shape[0];
	CHECK("block8", code, U8, n);
	REQUIRE("block8", a->first >= 0 && a->first < VFM_BLOCK8, "'first' is no place in a block");
	REQUIRE("block8", a->first == 0 || a->back, "blocks are quantized from their first element");
	CHECK("block8", scale, F32, (a->first + n + VFM_BLOCK8 - 1) / VFM_BLOCK8);
	return 0;
}

struct vfm_cost vfm_cost_block8(const struct vfm_block8 *a)
{
	return (struct vfm_cost){0, op_bytes(&a->x) + op_bytes(&a->code) + op_bytes(&a->scale)};
}

OP(block8, NO_SEQS, IO(x, NORMAL), IO(code, INDEX), IO(scale, POSITIVE))

static int check_mxfp8(const struct vfm_mxfp8 *a, struct vfm_err *err)
{
	int64_t r, n;

	CHECK("mxfp8", x, ACT, -1, -1);
	r = a->x.shape[0], n = a->x.shape[1];
	REQUIRE("mxfp8", n % VFM_MX_BLOCK == 0, "rows are no multiple of a block");
	CHECK("mxfp8", code, 1u << VFM_F8E4M3 | STRIDED, r, n);
	CHECK("mxfp8", scale, U8 | STRIDED, r, n / VFM_MX_BLOCK);
	REQUIRE("mxfp8", (uintptr_t)a->code.data % 16 == 0, "'code' is not aligned");
	REQUIRE("mxfp8", r <= 1 || a->code.stride[0] % 16 == 0, "rows of 'code' are not aligned");
	return 0;
}

struct vfm_cost vfm_cost_mxfp8(const struct vfm_mxfp8 *a)
{
	return (struct vfm_cost){0, op_bytes(&a->x) + op_bytes(&a->code) + op_bytes(&a->scale)};
}

OP(mxfp8, NO_SEQS, IO(x, NORMAL), IO(code, NORMAL), IO(scale, INDEX))
