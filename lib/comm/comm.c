#include "comm/comm.h"

#include "ops/ops.h"

/* ---- the group of one ---- */

static int self_copy(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err)
{
	struct vfm_axpby a = {.alpha = 1, .x = in, .y = out};

	(void)c;
	return in.data == out.data ? 0 : vfm_op_axpby(s, &a, err);
}

static int self_in_place(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err)
{
	(void)c, (void)s, (void)x, (void)err;
	return 0;
}

static int self_broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err)
{
	(void)root;
	return self_in_place(c, s, x, err);
}

static int self_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err)
{
	return self_in_place(c, s, (struct vfm_tensor){0}, err);
}

static void self_free(struct vfm_comm *c)
{
	(void)c;
}

static const struct vfm_comm_table self_table = {
	.name = "self",
	.all_reduce = self_in_place,
	.all_gather = self_copy,
	.reduce_scatter = self_copy,
	.all_to_all = self_copy,
	.broadcast = self_broadcast,
	.barrier = self_barrier,
	.free = self_free,
};

struct vfm_comm *vfm_comm_self(void)
{
	static struct vfm_comm self = {.t = &self_table, .size = 1};

	return &self;
}

/* ---- what callers use: checks, then the filling ---- */

static int check(const struct vfm_comm *c, const char *what, struct vfm_tensor small, struct vfm_tensor big, struct vfm_err *err)
{
	if (small.dtype == big.dtype && vfm_numel(&small) * c->size == vfm_numel(&big) && vfm_contiguous(&small) && vfm_contiguous(&big))
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%s over %d ranks: %lld elements do not go with %lld", what, c->size, (long long)vfm_numel(&small),
		(long long)vfm_numel(&big));
}

int vfm_all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err)
{
	return c->t->all_reduce(c, s, x, err);
}

int vfm_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err)
{
	TRY(check(c, "all_gather", in, out, err));
	return c->t->all_gather(c, s, in, out, err);
}

int vfm_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err)
{
	TRY(check(c, "reduce_scatter", out, in, err));
	return c->t->reduce_scatter(c, s, in, out, err);
}

int vfm_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out, struct vfm_err *err)
{
	if (vfm_numel(&in) != vfm_numel(&out) || vfm_numel(&in) % c->size)
		return vfm_fail(err, VFM_EUSAGE, "all_to_all over %d ranks: %lld elements in, %lld out", c->size, (long long)vfm_numel(&in),
			(long long)vfm_numel(&out));
	return c->t->all_to_all(c, s, in, out, err);
}

int vfm_broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err)
{
	if (root < 0 || root >= c->size)
		return vfm_fail(err, VFM_EUSAGE, "broadcast: root %d of %d ranks", root, c->size);
	return c->t->broadcast(c, s, x, root, err);
}

int vfm_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err)
{
	return c->t->barrier(c, s, err);
}
