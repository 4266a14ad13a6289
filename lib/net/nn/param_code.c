/* param_code.c - base weights stored as int8 or NF4: the scales of whole tensors, and their encoding. */
/* The scales of a tensor follow from all of its elements, so that its values do not depend on the layout.  Ranks encode
 * a parameter together: each finds the absmax of its blocks, and the ranks that hold other parts add theirs.  Every
 * rank has the scales of the whole tensor (4 bytes for a row, or for 16,384 elements); the codes are in the shards. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "comm/coll/comm.h"
#include "device/ops/ops.h"
#include "device/ops/weight_code.h"
#include "net/nn/param_impl.h"

enum { BLOCK = VFM_NF4_BLOCK, PAR_BLOCKS = 1 << 12, DECODED = 512 /* of the op: elements of a row are a multiple */ };

struct vfm_base_code {
	struct vfm_weight_segment *segment; /* [n] of the bucket; the device has a copy */
	int64_t n;
	size_t cap;
	int64_t *first, *base; /* [parameters] first segment; first scale */
	int64_t scales;
	struct vfm_tensor d_segment, d_scale, d_offset;
};

static bool is_nf4(const struct vfm_param_bucket *s)
{
	return s->stored == VFM_FROZEN_NF4;
}

static int64_t row_length_of(const struct vfm_param *p)
{
	return p->d.shape[p->d.ndim - 1];
}

static int64_t blocks_of(const struct vfm_param *p)
{
	return vfm_shape_numel(p->d.ndim, p->d.shape) / BLOCK;
}

static int64_t scales_of(const struct vfm_param_bucket *s, const struct vfm_param *p)
{
	return is_nf4(s) ? (blocks_of(p) + VFM_NF4_GROUP - 1) / VFM_NF4_GROUP
			 : vfm_shape_numel(p->d.ndim, p->d.shape) / row_length_of(p);
}

/* ---- segments ---- */

/* Adds a run of elements of the global tensor, from `from`, at element `at` of the bucket: whole rows, or a part of
 * one. A part that lies in the row below the last segment, in the same columns, extends it. */
static void add_segment(struct vfm_base_code *c, const struct vfm_param_bucket *s, const struct vfm_param *p,
	int64_t param, const struct vfm_run *run)
{
	const int64_t row = row_length_of(p), unit = is_nf4(s) ? BLOCK : row;
	const bool whole = run->n % row == 0 && run->from % row == 0;
	struct vfm_weight_segment *last = c->n > c->first[param] ? &c->segment[c->n - 1] : NULL;
	struct vfm_weight_segment x = {.begin = p->off - s->off + run->to,
		.rows = whole ? run->n / row : 1,
		.cols = whole ? row : run->n,
		.first = run->from / unit,
		.pitch = row / unit,
		.base = c->base[param]};

	if (!whole && last && last->cols == x.cols && last->begin + last->rows * last->cols == x.begin &&
		last->first + last->rows * last->pitch == x.first) {
		last->rows++;
		return;
	}
	vfm_grow(&c->segment, &c->cap, (size_t)c->n + 1, sizeof(*c->segment));
	c->segment[c->n++] = x;
}

static int by_place(const void *a, const void *b)
{
	const struct vfm_run *x = a, *y = b;

	return (x->to > y->to) - (x->to < y->to);
}

/* Returns the runs of elements [a, b) of the local tensor, in the order of the local tensor. */
static struct vfm_runs list_local_runs(const struct vfm_param *p, int64_t a, int64_t b)
{
	struct vfm_runs runs = {0};

	vfm_runs_add_part(&runs, &p->part, a, b);
	qsort(runs.v, runs.n, sizeof(*runs.v), by_place);
	return runs;
}

static void list_segments(struct vfm_base_code *c, const struct vfm_param_bucket *s)
{
	c->first = vfm_calloc((size_t)s->n_p + 1, sizeof(*c->first));
	c->base = vfm_calloc((size_t)s->n_p + 1, sizeof(*c->base));
	for (int i = 0; i < s->n_p; i++) {
		struct vfm_runs runs = list_local_runs(s->p[i], 0, s->p[i]->n);

		c->first[i] = c->n;
		c->base[i] = c->scales;
		c->scales += scales_of(s, s->p[i]);
		for (size_t r = 0; r < runs.n; r++)
			add_segment(c, s, s->p[i], i, &runs.v[r]);
		vfm_runs_release(&runs);
	}
	c->first[s->n_p] = c->n;
}

int vfm_bucket_alloc_code(struct vfm_params *ps, struct vfm_param_bucket *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = ps->stream->dev->t;
	struct vfm_base_code *c;
	size_t bytes;

	if (s->stored != VFM_FROZEN_INT8 && s->stored != VFM_FROZEN_NF4)
		return 0;
	c = s->code = vfm_calloc(1, sizeof(*c));
	list_segments(c, s);
	bytes = (size_t)c->n * sizeof(*c->segment);
	c->d_segment = vfm_t2(vfm_dev_alloc(ps->stream, bytes, "scales of weights", err), VFM_I64, c->n, 6);
	if (!c->d_segment.data)
		return VFM_EENV;
	c->d_scale =
		vfm_t1(vfm_dev_alloc(ps->stream, (size_t)c->scales * 4, "scales of weights", err), VFM_F32, c->scales);
	if (!c->d_scale.data)
		return VFM_EENV;
	if (is_nf4(s)) {
		c->d_offset =
			vfm_t1(vfm_dev_alloc(ps->stream, (size_t)c->n * 4, "scales of weights", err), VFM_F32, c->n);
		if (!c->d_offset.data)
			return VFM_EENV;
		TRY(t->zero(ps->stream, c->d_offset.data, vfm_nbytes(&c->d_offset), err));
	}
	TRY(t->zero(ps->stream, c->d_scale.data, vfm_nbytes(&c->d_scale), err));
	return t->to_device(ps->stream, c->d_segment.data, c->segment, bytes, err);
}

void vfm_bucket_free_code(struct vfm_params *ps, struct vfm_param_bucket *s)
{
	struct vfm_base_code *c = s->code;

	if (!c)
		return;
	vfm_dev_free(ps->stream, c->d_segment.data, vfm_nbytes(&c->d_segment));
	vfm_dev_free(ps->stream, c->d_scale.data, vfm_nbytes(&c->d_scale));
	vfm_dev_free(ps->stream, c->d_offset.data, vfm_nbytes(&c->d_offset));
	free(c->segment);
	free(c->first);
	free(c->base);
	free(c);
	s->code = NULL;
}

void vfm_params_each_scale(const struct vfm_params *ps, void (*fn)(void *ctx, void *data, size_t bytes), void *ctx)
{
	for (int i = 0; i < ps->n_buckets; i++) {
		const struct vfm_base_code *c = ps->bucket[i].code;

		if (!c)
			continue;
		fn(ctx, c->d_scale.data, vfm_nbytes(&c->d_scale));
		if (c->d_offset.data)
			fn(ctx, c->d_offset.data, vfm_nbytes(&c->d_offset));
	}
}

/* ---- encoding ---- */

/* A parameter while ranks encode it. */
struct encoding {
	struct vfm_params *ps;
	const struct vfm_param *p;
	const struct vfm_param_bucket *s;
	const struct vfm_owned *o;
	struct vfm_runs runs; /* of the owned elements */
	float *x;             /* [owned] */
	float *absmax;        /* [blocks of the tensor + 1] of each block; the last: ranks without values */
	float *row_max;       /* INT8: [rows of the tensor] */
	uint8_t *code;        /* [bytes of owned elements] */
	int64_t bits;
	const struct vfm_run *run; /* that vfm_par_for works on */
};

static void find_absmax(int64_t b0, int64_t b1, void *ctx)
{
	const struct encoding *e = ctx;

	vfm_nf4_absmax(e->x + e->run->to + b0 * BLOCK, (b1 - b0) * BLOCK, e->absmax + e->run->from / BLOCK + b0);
}

static void encode_blocks(int64_t b0, int64_t b1, void *ctx)
{
	const struct encoding *e = ctx;
	const int64_t row = row_length_of(e->p);

	if (is_nf4(e->s)) {
		vfm_nf4_encode(e->x + e->run->to + b0 * BLOCK, (b1 - b0) * BLOCK, e->absmax + e->run->from / BLOCK + b0,
			e->code + (e->run->to + b0 * BLOCK) / 2);
		return;
	}
	for (int64_t i = b0 * BLOCK, end = b1 * BLOCK; i < end;) {
		int64_t from = e->run->from + i, left = row - from % row, n = left < end - i ? left : end - i;

		vfm_int8_encode(e->x + e->run->to + i, n, e->row_max[from / row], (int8_t *)e->code + e->run->to + i);
		i += n;
	}
}

static void for_each_run(struct encoding *e, void (*fn)(int64_t, int64_t, void *))
{
	for (size_t r = 0; r < e->runs.n; r++) {
		e->run = &e->runs.v[r];
		vfm_par_for(e->run->n / BLOCK, PAR_BLOCKS, fn, e);
	}
}

/* Adds the absmax of the blocks of other ranks.  Every block has one rank, in a group of ranks with other elements. */
static int add_absmax(struct encoding *e, struct vfm_err *err)
{
	const struct vfm_mesh *m = e->ps->mesh;
	struct vfm_tensor x = vfm_t1(e->absmax, VFM_F32, blocks_of(e->p) + 1);

	if (e->s->sharding == VFM_SHARDING_FULL)
		TRY(vfm_all_reduce(vfm_comm_host(e->s->shard), NULL, x, err));
	for (int axis = 0; axis < VFM_AXES; axis++)
		if (e->p->d.cut[axis].groups > 0 && m->size[axis] > 1)
			TRY(vfm_all_reduce(vfm_comm_host(m->group[axis]), NULL, x, err));
	return 0;
}

/* Copies the codes of the owned elements to the shard: [codes][absmax codes]. */
static int store_codes(struct encoding *e, const uint8_t *absmax_code, struct vfm_err *err)
{
	const struct vfm_dev_table *t = e->ps->stream->dev->t;
	const int64_t at = e->o->at - e->s->own_off, n = e->o->b - e->o->a, blocks = n / BLOCK;
	uint8_t *mine;
	char *w;
	int rc;

	if (n == 0)
		return 0;
	TRY(vfm_bucket_open(e->ps, e->s, &w, err));
	TRY(t->to_device(e->ps->stream, w + at * e->bits / 8, e->code, (size_t)(n * e->bits / 8), err));
	if (!is_nf4(e->s))
		return t->stream_sync(e->ps->stream, err);
	mine = vfm_malloc((size_t)blocks + 1);
	for (size_t r = 0; r < e->runs.n; r++)
		memcpy(mine + e->runs.v[r].to / BLOCK, absmax_code + e->runs.v[r].from / BLOCK,
			(size_t)(e->runs.v[r].n / BLOCK));
	rc = t->to_device(e->ps->stream, w + e->s->own_n * e->bits / 8 + at / BLOCK, mine, (size_t)blocks, err);
	if (rc == 0)
		rc = t->stream_sync(e->ps->stream, err);
	free(mine);
	return rc;
}

static int store_scales(struct encoding *e, const float *scale, float offset, struct vfm_err *err)
{
	const struct vfm_dev_table *t = e->ps->stream->dev->t;
	const struct vfm_base_code *c = e->s->code;
	int i = 0;

	while (e->s->p[i] != e->p)
		i++;
	TRY(t->to_device(
		e->ps->stream, (float *)c->d_scale.data + c->base[i], scale, (size_t)scales_of(e->s, e->p) * 4, err));
	for (int64_t k = c->first[i]; k < c->first[i + 1] && is_nf4(e->s); k++)
		TRY(t->to_device(e->ps->stream, (float *)c->d_offset.data + k, &offset, sizeof(offset), err));
	return t->stream_sync(e->ps->stream, err);
}

static int encode_int8(struct encoding *e, struct vfm_err *err)
{
	const int64_t rows = scales_of(e->s, e->p), each = row_length_of(e->p) / BLOCK;

	e->row_max = vfm_malloc((size_t)rows * sizeof(*e->row_max));
	for (int64_t r = 0; r < rows; r++)
		e->row_max[r] = vfm_int8_absmax(e->absmax + r * each, each);
	for_each_run(e, encode_blocks);
	TRY(store_codes(e, NULL, err));
	return store_scales(e, e->row_max, 0, err);
}

static int encode_nf4(struct encoding *e, struct vfm_err *err)
{
	const int64_t blocks = blocks_of(e->p);
	const float offset = vfm_nf4_offset(e->absmax, blocks);
	uint8_t *code = vfm_malloc((size_t)blocks);
	float *scale = vfm_malloc((size_t)scales_of(e->s, e->p) * sizeof(*scale));
	int rc;

	for_each_run(e, encode_blocks);
	vfm_nf4_encode_absmax(e->absmax, blocks, offset, code, scale);
	rc = store_codes(e, code, err);
	if (rc == 0)
		rc = store_scales(e, scale, offset, err);
	free(code);
	free(scale);
	return rc;
}

/* Copies the owned elements to the host. */
static int copy_owned(struct encoding *e, const float *x, struct vfm_err *err)
{
	const struct vfm_dev_table *t = e->ps->stream->dev->t;
	const size_t bytes = (size_t)(e->o->b - e->o->a) * sizeof(*x);

	TRY(t->to_host(e->ps->stream, e->x, x, bytes, err));
	return t->stream_sync(e->ps->stream, err);
}

int vfm_param_encode(struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, const float *x,
	struct vfm_err *err)
{
	const struct vfm_param_bucket *s = &ps->bucket[p->bucket];
	const int64_t n = o->b - o->a, blocks = blocks_of(p);
	struct encoding e = {.ps = ps, .p = p, .s = s, .o = o, .bits = is_nf4(s) ? 4 : 8};
	int rc = 0;

	if (ps->stream->dev->no_data)
		return 0;
	e.x = vfm_malloc((size_t)n * sizeof(*e.x) + 1);
	e.absmax = vfm_calloc((size_t)blocks + 1, sizeof(*e.absmax));
	e.code = vfm_malloc((size_t)(n * e.bits / 8) + 1);
	if (n > 0 && x)
		rc = copy_owned(&e, x, err);
	if (n > 0 && x && rc == 0) {
		e.runs = list_local_runs(p, o->a, o->b);
		for_each_run(&e, find_absmax);
	}
	e.absmax[blocks] = n > 0 && (!x || rc < 0);
	TRY_OUT(add_absmax(&e, rc < 0 ? NULL : err) < 0 && rc == 0 ? err->code : rc);
	if (e.absmax[blocks] > 0)
		TRY_OUT(vfm_fail(err, VFM_EINPUT, "%s: another rank has no values", p->name));
	rc = is_nf4(s) ? encode_nf4(&e, err) : encode_int8(&e, err);
out:
	vfm_runs_release(&e.runs);
	free(e.x);
	free(e.absmax);
	free(e.row_max);
	free(e.code);
	return rc;
}

/* ---- decoding ---- */

/* Returns the op for `shards` shards of n elements at w, each with its absmax codes after its codes. */
static struct vfm_decode_weights decode_shards(
	const struct vfm_param_bucket *s, char *w, void *x, enum vfm_dtype dt, int64_t shards, int64_t n)
{
	const int64_t bytes = is_nf4(s) ? n / 2 : n;
	struct vfm_decode_weights a = {.format = is_nf4(s) ? VFM_WEIGHTS_NF4 : VFM_WEIGHTS_INT8,
		.x = vfm_t2(x, dt, shards, n),
		.code = vfm_t2(w, VFM_U8, shards, bytes),
		.segment = s->code->d_segment,
		.scale = s->code->d_scale,
		.offset = s->code->d_offset};

	if (is_nf4(s)) {
		a.absmax = vfm_t2(w + bytes, VFM_U8, shards, n / BLOCK);
		a.code.stride[0] = a.absmax.stride[0] = bytes + n / BLOCK;
	}
	return a;
}

int vfm_bucket_decode(struct vfm_params *ps, const struct vfm_param_bucket *s, char *w, void *x, enum vfm_dtype dt,
	struct vfm_err *err)
{
	struct vfm_decode_weights a = decode_shards(s, w, x, dt, s->shard->size, s->own_n);

	return vfm_op_decode_weights(ps->stream, &a, err);
}

/* Decodes elements [lo, lo + n) of this rank's shard to x, with segments that count from lo. */
static int decode_owned_range(struct vfm_params *ps, const struct vfm_param_bucket *s, char *w, int64_t lo, int64_t n,
	float *x, struct vfm_err *err)
{
	const struct vfm_base_code *c = s->code;
	const int64_t bits = is_nf4(s) ? 4 : 8;
	struct vfm_decode_weights a = decode_shards(s, w + lo * bits / 8, x, VFM_F32, 1, n);
	const size_t bytes = vfm_nbytes(&c->d_segment);
	struct vfm_weight_segment *own;
	int rc;

	a.segment.data = vfm_dev_alloc(ps->stream, bytes, "scales of weights", err);
	if (!a.segment.data)
		return VFM_EENV;
	if (is_nf4(s))
		a.absmax.data = w + s->own_n / 2 + lo / BLOCK;
	own = vfm_malloc(bytes + 1);
	memcpy(own, c->segment, bytes);
	for (int64_t i = 0; i < c->n; i++)
		own[i].begin -= s->own + lo;
	rc = ps->stream->dev->t->to_device(ps->stream, a.segment.data, own, bytes, err);
	if (rc == 0)
		rc = vfm_op_decode_weights(ps->stream, &a, err);
	free(own);
	vfm_dev_free(ps->stream, a.segment.data, bytes);
	return rc;
}

int vfm_param_decode(
	struct vfm_params *ps, const struct vfm_param *p, const struct vfm_owned *o, float *x, struct vfm_err *err)
{
	const struct vfm_param_bucket *s = &ps->bucket[p->bucket];
	const int64_t at = o->at - s->own_off, end = at + o->b - o->a, lo = at / DECODED * DECODED,
		      n = (end + DECODED - 1) / DECODED * DECODED - lo;
	float *all;
	char *w;
	int rc;

	TRY(vfm_bucket_open(ps, s, &w, err));
	all = vfm_dev_alloc(ps->stream, (size_t)n * sizeof(*all), "decoded weights", err);
	if (!all)
		return VFM_EENV;
	rc = decode_owned_range(ps, s, w, lo, n, all, err);
	if (rc == 0)
		rc = ps->stream->dev->t->to_host(ps->stream, x, all + (at - lo), (size_t)(end - at) * sizeof(*x), err);
	vfm_dev_free(ps->stream, all, (size_t)n * sizeof(*all));
	return rc;
}
