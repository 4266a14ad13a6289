/* param_values.c - the values of parameters on this rank: where they are, reads and writes, initial values. */
#include "net/nn/param.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/ops/dynamic8.h"
#include "io/hash.h"
#include "net/nn/param_impl.h"

struct vfm_owned vfm_param_owned(const struct vfm_params *ps, const struct vfm_param *p)
{
	const struct vfm_param_bucket *s = &ps->bucket[p->bucket];
	int64_t lo = s->off + s->own, a = lo - p->off,
		b = a + s->own_n; /* the shard, relative to the first element of the parameter */
	struct vfm_owned o = {.a = a > 0 ? a : 0, .b = b < p->n ? b : p->n};

	if (o.b <= o.a)
		return (struct vfm_owned){0};
	o.at = s->own_off + (o.a - a);
	o.g = s->g ? s->g + (o.a - a) : NULL;
	/* Replicas hold the same arrays.  Each writes the parameters that start in its share of them. */
	o.writes =
		s->first && s->replica->rank == (int)(o.at * s->replica->size / (s->frozen ? ps->n_frozen : ps->n_own));
	return o;
}

/* The address of the owned elements of a parameter. */
struct owned_location {
	float *f32; /* NULL: not stored as f32 */
	/* of split masters */
	uint16_t *hi;
	int16_t *lo;
	uint16_t *bf16; /* of frozen parameters and bf16 arrays */
	uint8_t *code;  /* of u8 arrays */
	bool coded;     /* stored in another dtype */
};

static struct owned_location locate_master(
	const struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, char *w)
{
	const struct vfm_param_bucket *s = &ps->bucket[p->bucket];
	int64_t at = o->at - s->own_off;

	if (s->stored != VFM_FROZEN_SAME)
		return (struct owned_location){.coded = true};
	if (s->frozen && vfm_bucket_dtype(ps, s) == VFM_F32)
		return (struct owned_location){.f32 = (float *)w + at};
	if (s->frozen)
		return (struct owned_location){.bf16 = (uint16_t *)w + at};
	if (!vfm_bucket_is_split(ps, s))
		return (struct owned_location){.f32 = ps->master + s->master_off + at};
	return (struct owned_location){.hi = (uint16_t *)w + at, .lo = ps->master_lo + s->master_off + at};
}

static int convert_split_master(const struct vfm_params *ps, const struct owned_location *m, float *x, int64_t n,
	bool join, struct vfm_err *err)
{
	return vfm_op_split_master(ps->stream,
		&(struct vfm_split_master){
			join, vfm_t1(x, VFM_F32, n), vfm_t1(m->hi, VFM_BF16, n), vfm_t1(m->lo, VFM_I16, n)},
		err);
}

static int locate_owned(struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p,
	const struct vfm_owned *o, struct owned_location *m, struct vfm_err *err)
{
	char *w;

	*m = (struct owned_location){0};
	if (!a) {
		TRY(vfm_bucket_open(ps, &ps->bucket[p->bucket], &w, err));
		*m = locate_master(ps, p, o, w);
	} else if (a->dtype == VFM_F32) {
		m->f32 = (float *)a->data + o->at;
	} else if (a->dtype == VFM_U8) {
		m->code = (uint8_t *)a->data + o->at;
	} else {
		m->bf16 = (uint16_t *)a->data + o->at;
	}
	return 0;
}

const float *vfm_param_at(const struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p)
{
	struct vfm_owned o = vfm_param_owned(ps, p);

	if (a)
		return a->dtype == VFM_F32 ? (const float *)a->data + o.at : NULL;
	/* of base weights that may be in host memory, vfm_param_get makes a copy */
	return ps->bucket[p->bucket].base ? NULL : locate_master(ps, p, &o, ps->bucket[p->bucket].w).f32;
}

int64_t vfm_params_blocks8(const struct vfm_params *ps)
{
	return ps->n_own / VFM_BLOCK8 + ps->n_buckets + 1;
}

/* Shards have any length: the blocks of two never overlap, because each has one more than its place tells. */
int64_t vfm_bucket_block8(const struct vfm_params *ps, int i)
{
	return ps->bucket[i].own_off / VFM_BLOCK8 + i;
}

static int dequantize_owned(struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p,
	const struct vfm_owned *o, float *x, struct vfm_err *err)
{
	int64_t n = o->b - o->a, at = o->at - ps->bucket[p->bucket].own_off, first = at % VFM_BLOCK8;
	float *scale = a->scale + vfm_bucket_block8(ps, p->bucket) + at / VFM_BLOCK8;

	return vfm_op_block8(ps->stream,
		&(struct vfm_block8){.back = true,
			.is_signed = a->is_signed,
			.first = first,
			.x = vfm_t1(x, VFM_F32, n),
			.code = vfm_t1((uint8_t *)a->data + o->at, VFM_U8, n),
			.scale = vfm_t1(scale, VFM_F32, (first + n + VFM_BLOCK8 - 1) / VFM_BLOCK8)},
		err);
}

int vfm_param_get(
	struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, float *x, struct vfm_err *err)
{
	struct vfm_owned o = vfm_param_owned(ps, p);
	int64_t n = o.b - o.a;
	struct vfm_axpby cast = {.alpha = 1, .y = vfm_t1(x, VFM_F32, n)};
	struct owned_location m;

	if (n == 0)
		return 0;
	TRY(locate_owned(ps, a, p, &o, &m, err));
	TRY(vfm_params_wait(ps, err));
	if (m.f32)
		return ps->stream->dev->t->to_host(ps->stream, x, m.f32, (size_t)n * 4, err);
	if (m.hi)
		return convert_split_master(ps, &m, x, n, true, err);
	if (m.code)
		return dequantize_owned(ps, a, p, &o, x, err);
	if (m.coded)
		return vfm_param_convert_base(ps, p, &o, x, true, err);
	cast.x = vfm_t1(m.bf16, VFM_BF16, n);
	return vfm_op_axpby(ps->stream, &cast, err);
}

int vfm_param_put(struct vfm_params *ps, const struct vfm_array *a, const struct vfm_param *p, const float *x,
	struct vfm_err *err)
{
	struct vfm_owned o = vfm_param_owned(ps, p);
	int64_t n = o.b - o.a;
	struct vfm_axpby cast = {.alpha = 1, .x = vfm_t1((float *)x, VFM_F32, n)};
	struct owned_location m;

	if (!a && vfm_param_put_is_collective(p))
		return vfm_param_encode(ps, p, &o, x, err);
	if (n == 0)
		return 0;
	TRY(locate_owned(ps, a, p, &o, &m, err));
	TRY(vfm_params_wait(ps, err));
	if (m.f32)
		return ps->stream->dev->t->to_device(ps->stream, m.f32, x, (size_t)n * 4, err);
	if (m.hi)
		return convert_split_master(ps, &m, (float *)x, n, false, err);
	if (m.code)
		return vfm_fail(err, VFM_EUSAGE, "internal: a part of a block of 8-bit floats cannot be set");
	if (m.coded)
		return vfm_param_convert_base(ps, p, &o, (float *)x, false, err);
	cast.y = vfm_t1(m.bf16, VFM_BF16, n);
	return vfm_op_axpby(ps->stream, &cast, err);
}

static int fill_runs(struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, float *x,
	struct vfm_fill *a, struct vfm_err *err)
{
	struct vfm_runs runs = {0};
	int rc = 0;

	if (ps->stream->dev->no_data)
		return 0;
	vfm_runs_add_part(&runs, &p->part, o->a, o->b);
	for (size_t r = 0; r < runs.n; r++) {
		a->x = vfm_t1(x + runs.v[r].to, VFM_F32, runs.v[r].n);
		a->first = runs.v[r].from;
		TRY_OUT(vfm_op_fill(ps->stream, a, err));
	}
out:
	vfm_runs_release(&runs);
	return rc;
}

/* Fills the owned elements of p.  Values that are not stored as f32 are converted from a temporary. */
static int fill_param(struct vfm_params *ps, const struct vfm_param *p, struct vfm_fill *a, struct vfm_err *err)
{
	struct vfm_owned o = vfm_param_owned(ps, p);
	struct owned_location m = {0};
	float *x;
	int rc;

	if (o.b == o.a)
		return vfm_param_put_is_collective(p) ? vfm_param_put(ps, NULL, p, NULL, err) : 0;
	if (!vfm_param_put_is_collective(p))
		TRY(locate_owned(ps, NULL, p, &o, &m, err));
	if (m.f32)
		return fill_runs(ps, p, &o, m.f32, a, err);
	x = vfm_dev_alloc(ps->stream, (size_t)(o.b - o.a) * 4, "initial values of a parameter", err);
	rc = x ? fill_runs(ps, p, &o, x, a, err) : VFM_EENV;
	if (rc == 0)
		rc = vfm_param_put(ps, NULL, p, x, err);
	else if (vfm_param_put_is_collective(p))
		vfm_param_put(ps, NULL, p, NULL, NULL);
	if (x)
		vfm_dev_free(ps->stream, x, (size_t)(o.b - o.a) * 4);
	return rc;
}

/* Fills all parameters.  After a failure, takes part in the collective calls of the others, which then fail, too. */
static int fill_params(struct vfm_params *ps, struct vfm_fill (*fill_of)(const struct vfm_param *p, uint64_t seed),
	uint64_t seed, struct vfm_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_fill a = fill_of(ps->p[i], seed);

		if (rc == 0)
			rc = fill_param(ps, ps->p[i], &a, err);
		else if (vfm_param_put_is_collective(ps->p[i]))
			vfm_param_put(ps, NULL, ps->p[i], NULL, NULL);
	}
	return rc < 0 ? rc : vfm_params_refresh(ps, err);
}

static struct vfm_fill initial_fill(const struct vfm_param *p, uint64_t seed)
{
	return (struct vfm_fill){.mean = p->init == VFM_INIT_ONE ? 1 : 0,
		.std = p->init == VFM_INIT_NORMAL ? p->std : 0,
		.rng = vfm_rng_stream(seed, 0, vfm_fnv64(p->name, strlen(p->name)), VFM_RNG_INIT)};
}

static struct vfm_fill dense_fill(const struct vfm_param *p, uint64_t seed)
{
	return (struct vfm_fill){.mean = p->init == VFM_INIT_ONE ? 1 : 0,
		.std = vfm_param_is_matrix(p) ? (float)(0.7 / sqrt((double)p->d.shape[p->d.ndim - 1])) : 0.1f,
		.rng = vfm_rng_stream(seed, 0, vfm_fnv64(p->name, strlen(p->name)), VFM_RNG_TEST)};
}

int vfm_params_fill(struct vfm_params *ps, uint64_t seed, struct vfm_err *err)
{
	return fill_params(ps, initial_fill, seed, err);
}

int vfm_params_fill_dense(struct vfm_params *ps, uint64_t seed, struct vfm_err *err)
{
	return fill_params(ps, dense_fill, seed, err);
}
