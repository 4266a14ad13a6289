/* ops_conv.c - check and cost of the convolution of frames. */
#include "device/ops/check.h"

static const char op[] = "conv3d";

/* Requires that the weight, of these dtypes, has the taps of the kernel and c channels (-1: any). */
static int check_weight(const struct vfm_conv3d *a, unsigned dt, int64_t c, struct vfm_err *err)
{
	for (int i = 0; i < 3; i++)
		REQUIRE(op, a->kernel[i] >= 1 && a->kernel[i] <= VFM_CONV3D_MAX, "a 'kernel' is not between 1 and 16");
	CHECK(op, weight, dt, -1, (int64_t)a->kernel[0] * a->kernel[1] * a->kernel[2], c);
	return 0;
}

static int check_conv3d(const struct vfm_conv3d *a, struct vfm_err *err)
{
	struct vfm_tensor past;
	int64_t h, w, c, o, size[3];
	unsigned dt;

	for (int i = 0; i < 3; i++) {
		REQUIRE(op, a->stride[i] >= 1 && a->stride[i] <= VFM_CONV3D_MAX, "a 'stride' is not between 1 and 16");
	}
	for (int i = 0; i < 4; i++)
		REQUIRE(op, a->pad[i] >= 0, "a 'pad' is negative");
	REQUIRE(op, a->zeros >= 0, "'zeros' is negative");
	REQUIRE(op, a->up == 0 || a->up == 1, "'up' is neither 0 nor 1");
	CHECK(op, x, ACT, -1, -1, -1, -1);
	dt = 1u << a->x.dtype, h = a->x.shape[1], w = a->x.shape[2], c = a->x.shape[3];
	past = a->past;
	past.stride[0] = h * w * c; /* frames may lie anywhere */
	TRY(vfm_op_check(op, "past", &past, dt | OPT, 4, (int64_t[]){-1, h, w, c}, err));
	TRY(check_weight(a, dt, c, err));
	o = a->weight.shape[0];
	CHECK(op, bias, F32 | OPT, o);
	for (int i = 0; i < 3; i++)
		size[i] = vfm_conv3d_size(a, i);
	CHECK(op, add, dt | OPT, size[0], size[1], size[2], o);
	CHECK(op, y, dt, size[0], size[1], size[2], o);
	return 0;
}

static struct vfm_cost extra_conv3d(const struct vfm_conv3d *a)
{
	return (struct vfm_cost){2 * (double)vfm_numel(&a->y) * (double)(a->weight.shape[1] * a->weight.shape[2]), 0};
}

OP_EXTRA(conv3d, check_conv3d, extra_conv3d, NO_SEQS, IN(x, NORMAL, ACT, "FHWC"), IN(past, NORMAL, IN_CHECK),
	IN(weight, SMALL, IN_CHECK), IN(bias, NORMAL, IN_CHECK), IN(add, NORMAL, IN_CHECK), OUT(y, IN_CHECK))

size_t vfm_conv3d_packed_size(struct vfm_stream *s, const struct vfm_conv3d *a)
{
	const struct vfm_ops *ops = s->dev->t->ops;

	return ops->conv3d_packed_size ? ops->conv3d_packed_size(s, a) : 0;
}

int vfm_conv3d_pack(struct vfm_stream *s, const struct vfm_conv3d *a, void *packed, struct vfm_err *err)
{
	const struct vfm_ops *ops = s->dev->t->ops;

	TRY(check_weight(a, ACT, -1, err));
	REQUIRE(op, ops->conv3d_pack, "this device packs no weights");
	return ops->conv3d_pack(s, a, packed, err);
}
