/* param_base.c - base weights that are stored in another dtype (param.h).  Each pass over a unit makes the copy that
 * ops read anew, on the compute stream: half a byte or one read and two written for each element, next to products with
 * every token. */
#include "device/ops/ops.h"
#include "net/nn/param_impl.h"

void vfm_param_base(struct vfm_param *p)
{
	p->base = p->frozen;
	p->stored = p->frozen ? (enum vfm_frozen_dtype)p->ps->tuning.frozen_dtype : VFM_FROZEN_SAME;
}

/* Returns the bytes of n elements, without the scales of rows and groups. */
static int64_t coded_bytes(enum vfm_frozen_dtype stored, int64_t n)
{
	return stored == VFM_FROZEN_FP8     ? n + n / VFM_MX_BLOCK
		: stored == VFM_FROZEN_INT8 ? n
					    : n / 2 + n / VFM_NF4_BLOCK;
}

int64_t vfm_bucket_bytes(const struct vfm_params *ps, const struct vfm_param_bucket *s, int64_t n)
{
	return s->stored == VFM_FROZEN_SAME ? n * (int64_t)vfm_dtype_size(vfm_bucket_dtype(ps, s))
					    : coded_bytes(s->stored, n);
}

int64_t vfm_param_frozen_bytes(const struct vfm_param *p, enum vfm_dtype dt)
{
	int64_t n = vfm_shape_numel(p->d.ndim, p->d.shape);

	return p->stored == VFM_FROZEN_SAME ? n * (int64_t)vfm_dtype_size(p->d.ndim > 1 || p->bias ? dt : VFM_F32)
					    : coded_bytes(p->stored, n);
}

int vfm_params_check_base(const struct vfm_params *ps, const char *option, struct vfm_err *err)
{
	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];
		int64_t row = p->part.shape[p->part.ndim - 1];
		int block = p->stored == VFM_FROZEN_FP8 ? VFM_MX_BLOCK : VFM_NF4_BLOCK;

		if (p->stored != VFM_FROZEN_SAME && row % block)
			return vfm_fail(err, VFM_EUSAGE,
				"%s: %s needs rows of a multiple of %d elements on each rank, and %s has %lld of %lld",
				option, vfm_frozen_names[p->stored], block, p->name, (long long)row,
				(long long)p->d.shape[p->d.ndim - 1]);
	}
	return 0;
}

/* Converts the shards, which lie one after the other at w, each with its scales after its codes, to x [bucket]. */
static int convert_shards(
	struct vfm_params *ps, const struct vfm_param_bucket *s, char *w, void *x, struct vfm_err *err)
{
	const int64_t n = s->own_n;
	struct vfm_mxfp8 a = {.back = true,
		.x = vfm_t2(x, ps->dtype, s->shard->size, n),
		.code = vfm_t2(w, VFM_F8E4M3, s->shard->size, n),
		.scale = vfm_t2(w + n, VFM_U8, s->shard->size, n / VFM_MX_BLOCK)};

	a.code.stride[0] = a.scale.stride[0] = n + n / VFM_MX_BLOCK;
	return vfm_op_mxfp8(ps->stream, &a, err);
}

static bool is_coded(const struct vfm_param_bucket *s, const struct vfm_unit *x)
{
	return s->stored != VFM_FROZEN_SAME && s->first_unit == x->id;
}

int vfm_unit_decode(struct vfm_unit *x, struct vfm_err *err)
{
	struct vfm_params *ps = x->ps;
	size_t es = vfm_dtype_size(ps->dtype);

	if (!x->n_decoded)
		return 0;
	if (!x->decoded)
		x->decoded = vfm_dev_alloc(ps->stream, (size_t)x->n_decoded * es, "decoded weights", err);
	if (!x->decoded)
		return VFM_EENV;
	for (int i = ps->n_trained; i < ps->n_buckets; i++) {
		struct vfm_param_bucket *s = &ps->bucket[i];
		char *to, *w;

		if (!is_coded(s, x))
			continue;
		to = x->decoded + (size_t)s->decoded_off * es;
		w = s->sharding == VFM_SHARDING_FULL ? x->w + s->w_off : vfm_bucket_stored(ps, s);
		if (s->stored == VFM_FROZEN_FP8)
			TRY(convert_shards(ps, s, w, to, err));
		else
			TRY(vfm_bucket_decode(ps, s, w, to, ps->dtype, err));
		vfm_bucket_set_weights(ps, s, to);
	}
	return 0;
}

void vfm_unit_drop_decoded(struct vfm_unit *x)
{
	struct vfm_params *ps = x->ps;

	if (!x->decoded)
		return;
	for (int i = ps->n_trained; i < ps->n_buckets; i++)
		if (is_coded(&ps->bucket[i], x))
			vfm_bucket_set_weights(ps, &ps->bucket[i], NULL);
	vfm_dev_free(ps->stream, x->decoded, (size_t)x->n_decoded * vfm_dtype_size(ps->dtype));
	x->decoded = NULL;
}

int vfm_param_convert_base(struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, float *x,
	bool back, struct vfm_err *err)
{
	const struct vfm_param_bucket *s = &ps->bucket[p->bucket];
	int64_t n = o->b - o->a, at = o->at - s->own_off;
	struct vfm_mxfp8 a = {.back = back, .x = vfm_t2(x, VFM_F32, 1, n)};
	char *w;

	if (s->stored != VFM_FROZEN_FP8)
		return back ? vfm_param_decode(ps, p, o, x, err) : vfm_param_encode(ps, p, o, x, err);
	TRY(vfm_bucket_open(ps, s, &w, err));
	a.code = vfm_t2(w + at, VFM_F8E4M3, 1, n);
	a.scale = vfm_t2(w + s->own_n + at / VFM_MX_BLOCK, VFM_U8, 1, n / VFM_MX_BLOCK);
	return vfm_op_mxfp8(ps->stream, &a, err);
}
