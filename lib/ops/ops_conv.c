/* ops_conv.c - check and cost of the convolution of frames. */
#include "ops/check.h"

static int check_conv3d(const struct vfm_conv3d *a, struct vfm_err *err)
{
	const char *op = "conv3d";
	struct vfm_tensor past;
	int64_t h, w, c, taps, o, size[3];
	unsigned dt;

	for (int i = 0; i < 3; i++) {
		REQUIRE(op, a->kernel[i] >= 1 && a->kernel[i] <= VFM_CONV3D_MAX, "a 'kernel' is not between 1 and 16");
		REQUIRE(op, a->stride[i] >= 1 && a->stride[i] <= VFM_CONV3D_MAX, "a 'stride' is not between 1 and 16");
	}
	for (int i = 0; i < 4; i++)
		REQUIRE(op, a->pad[i] >= 0, "a 'pad' is negative");
	REQUIRE(op, a->zeros >= 0, "'zeros' is negative");
	REQUIRE(op, a->up == 0 || a->up == 1, "'up' is neither 0 nor 1");
	CHECK(op, x, ACT, -1, -1, -1, -1);
	dt = 1u << a->x.dtype, h = a->x.shape[1], w = a->x.shape[2], c = a->x.shape[3];
	taps = (int64_t)a->kernel[0] * a->kernel[1] * a->kernel[2];
	past = a->past;
	past.stride[0] = h * w * c; /* frames may lie anywhere */
	TRY(vfm_op_check(op, "past", &past, dt | OPT, 4, (int64_t[]){-1, h, w, c}, err));
	CHECK(op, weight, dt, -1, taps, c);
	o = a->weight.shape[0];
	CHECK(op, bias, F32 | OPT, o);
	for (int i = 0; i < 3; i++)
		size[i] = vfm_conv3d_size(a, i);
	CHECK(op, add, dt | OPT, size[0], size[1], size[2], o);
	CHECK(op, y, dt, size[0], size[1], size[2], o);
	return 0;
}

struct vfm_cost vfm_cost_conv3d(const struct vfm_conv3d *a)
{
	return (struct vfm_cost){2.0 * (double)vfm_numel(&a->y) * (double)(a->weight.shape[1] * a->weight.shape[2]),
		op_bytes(&a->x) + op_bytes(&a->past) + op_bytes(&a->weight) + op_bytes(&a->bias) + op_bytes(&a->add) +
			op_bytes(&a->y)};
}

DISPATCH(conv3d)
