/* cpu_ops.c - drivers: they divide each op into ranges, and reduce partial results in a fixed order. */
#include "device/cpu/cpu_impl.h"

#include <math.h>
#include <string.h>

#include "base/par.h"
#include "device/cpu/cpu_fp8.h"

enum {
	ROW_GRAIN = 32,         /* tokens a piece */
	ELEM_GRAIN = 64 * 1024, /* elements of a range */
	SUM_GRAIN = 64 * 1024,
};

int64_t vfm_cpu_chunks(struct vfm_stream *st, const struct vfm_seqs *q, int64_t total, int64_t grain,
	struct vfm_chunk **out, struct vfm_err *err)
{
	int64_t n = 0, most = total / grain + (q ? q->n : 0) + 1;
	struct vfm_chunk *c = vfm_cpu_ws(st, VFM_WS_CHUNKS, (size_t)most * sizeof(*c), err);

	if (!c)
		return VFM_EENV;
	for (int64_t s = 0; s < (q ? q->n : 1); s++) {
		int64_t end = q ? q->cu[s + 1] : total;

		for (int64_t t = q ? q->cu[s] : 0; t < end; t += grain)
			c[n++] = (struct vfm_chunk){t, t + grain < end ? t + grain : end, q ? s : -1};
	}
	*out = c;
	return n;
}

/* The context of a parallel loop over chunks. */
struct ops_job {
	const struct vfm_cpu_kern *kern;
	const void *args;
	const struct vfm_chunk *chunks;
	int64_t n_chunks;
	int64_t d;   /* scratch: 5 d floats */
	float *part; /* [chunk][part_len], or NULL */
	int64_t part_len;
	double *dpart; /* [chunk] */
};

#define ROW_RANGE(name, call)                                                                                          \
	static void name##_range(int64_t c0, int64_t c1, void *ctx)                                                    \
	{                                                                                                              \
		const struct ops_job *j = ctx;                                                                         \
		const struct vfm_##name *a = j->args;                                                                  \
		float *tmp = vfm_cpu_scratch((size_t)j->d * 5 * sizeof(float) + 64);                                   \
                                                                                                                       \
		for (int64_t i = c0; i < c1; i++) {                                                                    \
			const struct vfm_chunk *c = &j->chunks[i];                                                     \
			float *part = j->part ? j->part + i * j->part_len : NULL;                                      \
                                                                                                                       \
			(void)part, (void)tmp;                                                                         \
			call;                                                                                          \
		}                                                                                                      \
	}
ROW_RANGE(norm, j->kern->norm(a, c->t0, c->t1, c->s, tmp, part))
ROW_RANGE(norm_bwd, j->kern->norm_bwd(a, c->t0, c->t1, c->s, tmp, part))
ROW_RANGE(gate, j->kern->gate(a, c->t0, c->t1, c->s, tmp))
ROW_RANGE(gate_bwd, j->kern->gate_bwd(a, c->t0, c->t1, c->s, tmp, part))
ROW_RANGE(add_row_bwd, j->kern->add_row_bwd(a, c->t0, c->t1, part))
ROW_RANGE(qk_norm_rope, j->kern->qk_norm_rope(a, c->t0, c->t1, tmp))
ROW_RANGE(qk_norm_rope_bwd, j->kern->qk_norm_rope_bwd(a, c->t0, c->t1, tmp, part))
ROW_RANGE(row_norm_rope_bwd, j->kern->row_norm_rope_bwd(a, c->t0, c->t1, part))
ROW_RANGE(diffuse, j->kern->diffuse(a, c->t0, c->t1, c->s, tmp))
ROW_RANGE(mse, j->dpart[i] = j->kern->mse(a, c->t0, c->t1, c->s))

/* Calls `range` for the chunks of q (or of `total` tokens).  With part_len each chunk has a partial result of that many
 * floats. */
static int run_rows(struct vfm_stream *s, struct ops_job *j, const struct vfm_seqs *q, int64_t total, int64_t grain,
	void (*range)(int64_t, int64_t, void *), struct vfm_err *err)
{
	struct vfm_chunk *c;

	j->kern = vfm_cpu_of(s)->kern;
	j->n_chunks = vfm_cpu_chunks(s, q, total, grain, &c, err);
	if (j->n_chunks < 0)
		return VFM_EENV;
	j->chunks = c;
	if (j->part_len) {
		j->part = vfm_cpu_ws(s, VFM_WS_PART, (size_t)(j->n_chunks * j->part_len) * sizeof(float) + 64, err);
		if (!j->part)
			return VFM_EENV;
	}
	vfm_par_for(j->n_chunks, 1, range, j);
	return 0;
}

/* ---- sums of rows --------------------------------------------------------------------- */

enum { RUN = 64 };

void vfm_cpu_sum_begin(struct vfm_cpu_sum *s, const struct vfm_cpu_kern *kern, float *mem, int64_t n)
{
	*s = (struct vfm_cpu_sum){.kern = kern, .n = n};
	for (int i = 0; i < VFM_CPU_SUM_LEVELS; i++)
		s->level[i] = mem + i * n;
	memset(mem, 0, (size_t)n * sizeof(*mem));
}

/* Adds level i to the next. */
static void raise_sum(struct vfm_cpu_sum *s, int i)
{
	if (i == s->top) {
		memcpy(s->level[i + 1], s->level[i], (size_t)s->n * sizeof(float));
		s->top++;
	} else {
		s->kern->sum_into(s->level[i + 1], s->level[i], s->n);
	}
}

void vfm_cpu_sum_next(struct vfm_cpu_sum *s)
{
	s->rows++;
	for (int64_t i = 0, k = s->rows; k % RUN == 0 && i + 1 < VFM_CPU_SUM_LEVELS; i++, k /= RUN) {
		raise_sum(s, (int)i);
		memset(s->level[i], 0, (size_t)s->n * sizeof(float));
	}
}

const float *vfm_cpu_sum_end(struct vfm_cpu_sum *s)
{
	for (int i = 0; i < s->top; i++)
		raise_sum(s, i);
	return s->level[s->top];
}

/* ---- sums of partial results -------------------------------------------------------- */

/* out[s] (+)= the sum of part[chunk][offset … offset + d) over the chunks of s. */
struct fold {
	const struct ops_job *j;
	int64_t offset, d;
	const struct vfm_tensor *out; /* [S,d], or [d] for all chunks together */
	bool add;
};

enum { FOLD_COLS = 256 };

static void fold_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct fold *f = ctx;
	const struct ops_job *j = f->j;
	int64_t blocks = (f->d + FOLD_COLS - 1) / FOLD_COLS;

	for (int64_t i = i0; i < i1; i++) {
		int64_t s = i / blocks, k = i % blocks * FOLD_COLS, n = f->d - k < FOLD_COLS ? f->d - k : FOLD_COLS, c;
		int64_t lo = 0, hi = j->n_chunks;
		bool per_sample = f->out->ndim == 2;
		float *out = (float *)f->out->data + (per_sample ? s * f->out->stride[0] : 0) + k;
		float mem[VFM_CPU_SUM_LEVELS * FOLD_COLS];
		struct vfm_cpu_sum sum;

		vfm_cpu_sum_begin(&sum, j->kern, mem, n);
		while (per_sample && lo < hi) { /* the first chunk of s */
			int64_t mid = (lo + hi) / 2;

			if (j->chunks[mid].s < s)
				lo = mid + 1;
			else
				hi = mid;
		}
		for (c = lo; c < j->n_chunks && (!per_sample || j->chunks[c].s == s); c++) {
			j->kern->sum_into(sum.level[0], j->part + c * j->part_len + f->offset + k, n);
			vfm_cpu_sum_next(&sum);
		}
		j->kern->axpby(1, vfm_cpu_sum_end(&sum), false, f->add, out, false, n);
	}
}

static void fold_chunks(const struct ops_job *j, int64_t offset, int64_t d, const struct vfm_tensor *out, bool add)
{
	struct fold f = {j, offset, d, out, add};
	int64_t rows = out->ndim == 2 ? out->shape[0] : 1;

	if (vfm_has(out))
		vfm_par_for(rows * ((d + FOLD_COLS - 1) / FOLD_COLS), 1, fold_range, &f);
}

/* ---- rows ------------------------------------------------------------------------------ */

int vfm_cpu_norm(struct vfm_stream *s, const struct vfm_norm *a, struct vfm_err *err)
{
	struct ops_job j = {.args = a, .d = a->x.shape[1], .part_len = vfm_has(&a->amax)};
	const struct vfm_seqs *q = vfm_has(&a->scale) || vfm_has(&a->gate) ? a->seqs : NULL;
	float *amax = a->amax.data;

	if (vfm_has(&a->history))
		*(float *)a->inv.data = ldexpf(1, -vfm_cpu_norm_exponent(a));
	TRY(run_rows(s, &j, q, a->x.shape[0], ROW_GRAIN, norm_range, err));
	for (int64_t i = 0; vfm_has(&a->amax) && i < j.n_chunks; i++)
		*amax = fmaxf(*amax, j.part[i]);
	return 0;
}

int vfm_cpu_norm_bwd(struct vfm_stream *s, const struct vfm_norm_bwd *a, struct vfm_err *err)
{
	int64_t d = a->x.shape[1];
	const struct vfm_seqs *q = vfm_has(&a->scale) || vfm_has(&a->gate) ? a->seqs : NULL;
	bool sums = vfm_has(&a->dscale) || vfm_has(&a->dshift) || vfm_has(&a->dweight) || vfm_has(&a->dbias) ||
		vfm_has(&a->dgate) || vfm_has(&a->dh_sum);
	struct ops_job j = {.args = a, .d = d, .part_len = sums ? (vfm_has(&a->dh) ? 4 : 2) * d : 0};

	TRY(run_rows(s, &j, q, a->x.shape[0], ROW_GRAIN, norm_bwd_range, err));
	fold_chunks(&j, 0, d, &a->dscale, false);
	fold_chunks(&j, d, d, &a->dshift, false);
	fold_chunks(&j, 0, d, &a->dweight, true);
	fold_chunks(&j, d, d, &a->dbias, true);
	fold_chunks(&j, 2 * d, d, &a->dgate, false);
	fold_chunks(&j, 3 * d, d, &a->dh_sum, true);
	return 0;
}

int vfm_cpu_gate(struct vfm_stream *s, const struct vfm_gate *a, struct vfm_err *err)
{
	struct ops_job j = {.args = a, .d = a->x.shape[1]};

	return run_rows(s, &j, vfm_has(&a->gate) ? a->seqs : NULL, a->x.shape[0], ROW_GRAIN, gate_range, err);
}

int vfm_cpu_gate_bwd(struct vfm_stream *s, const struct vfm_gate_bwd *a, struct vfm_err *err)
{
	int64_t d = a->dy.shape[1];
	struct ops_job j = {.args = a, .d = d, .part_len = (vfm_has(&a->dh_sum) ? 2 : vfm_has(&a->dgate)) * d};

	TRY(run_rows(s, &j, a->seqs, a->dy.shape[0], ROW_GRAIN, gate_bwd_range, err));
	fold_chunks(&j, 0, d, &a->dgate, false);
	fold_chunks(&j, d, d, &a->dh_sum, true);
	return 0;
}

int vfm_cpu_add_row_bwd(struct vfm_stream *s, const struct vfm_add_row_bwd *a, struct vfm_err *err)
{
	int64_t d = a->dy.shape[1];
	struct ops_job j = {.args = a, .part_len = d};

	TRY(run_rows(s, &j, NULL, a->dy.shape[0], ROW_GRAIN, add_row_bwd_range, err));
	fold_chunks(&j, 0, d, &a->drow, true);
	return 0;
}

int vfm_cpu_qk_norm_rope(struct vfm_stream *s, const struct vfm_qk_norm_rope *a, struct vfm_err *err)
{
	struct ops_job j = {.args = a, .d = a->x.shape[2]};
	struct vfm_qk_norm_rope second = vfm_qk_second(a);

	TRY(run_rows(s, &j, NULL, a->x.shape[0], ROW_GRAIN, qk_norm_rope_range, err));
	return vfm_has(&second.x) ? vfm_cpu_qk_norm_rope(s, &second, err) : 0;
}

int vfm_cpu_qk_norm_rope_bwd(struct vfm_stream *s, const struct vfm_qk_norm_rope_bwd *a, struct vfm_err *err)
{
	int64_t d = a->dy.shape[2];
	struct ops_job j = {.args = a, .d = d, .part_len = d};

	struct vfm_qk_norm_rope_bwd second = vfm_qk_second_bwd(a);

	TRY(run_rows(s, &j, NULL, a->dy.shape[0], ROW_GRAIN, qk_norm_rope_bwd_range, err));
	fold_chunks(&j, 0, d, &a->dweight, true);
	return vfm_has(&second.dy) ? vfm_cpu_qk_norm_rope_bwd(s, &second, err) : 0;
}

int vfm_cpu_row_norm_rope_bwd(struct vfm_stream *s, const struct vfm_row_norm_rope_bwd *a, struct vfm_err *err)
{
	int64_t width = a->x.shape[1] * a->x.shape[2];
	struct ops_job j = {.args = a, .part_len = width};

	if (width == 0) /* no heads */
		return 0;
	TRY(run_rows(s, &j, NULL, a->x.shape[0], ROW_GRAIN, row_norm_rope_bwd_range, err));
	fold_chunks(&j, 0, width, &a->dweight, true);
	return 0;
}

int vfm_cpu_diffuse(struct vfm_stream *s, const struct vfm_diffuse *a, struct vfm_err *err)
{
	struct ops_job j = {.args = a, .d = a->x0.shape[1]};

	return run_rows(s, &j, a->seqs, a->x0.shape[0], ROW_GRAIN, diffuse_range, err);
}

int vfm_cpu_mse(struct vfm_stream *s, const struct vfm_mse *a, struct vfm_err *err)
{
	struct ops_job j = {.args = a};
	double *loss = a->loss.data;
	const float *w = a->w.data;
	int64_t c = 0;

	j.dpart = vfm_cpu_ws(
		s, VFM_WS_PART, (size_t)(a->pred.shape[0] / ROW_GRAIN + a->seqs->n + 1) * sizeof(*j.dpart), err);
	if (!j.dpart)
		return VFM_EENV;
	TRY(run_rows(s, &j, a->seqs, a->pred.shape[0], ROW_GRAIN, mse_range, err));
	for (int64_t i = 0; i < a->seqs->n; i++) {
		double sum = 0;

		for (; c < j.n_chunks && j.chunks[c].s == i; c++)
			sum += j.dpart[c];
		*loss += (double)w[i] * sum;
		if (vfm_has(&a->unweighted))
			*(double *)a->unweighted.data += sum;
		if (vfm_has(&a->sample_loss))
			((float *)a->sample_loss.data)[i] = (float)sum;
	}
	return 0;
}

/* ---- elements ---------------------------------------------------------------------------- */

#define X(op, operand)                                                                                                 \
	VFM_CPU_RANGE(op)                                                                                              \
	int vfm_cpu_##op(struct vfm_stream *s, const struct vfm_##op *a, struct vfm_err *err)                          \
	{                                                                                                              \
		struct vfm_cpu_job j = {vfm_cpu_of(s)->kern, a};                                                       \
                                                                                                                       \
		(void)err;                                                                                             \
		vfm_par_for(vfm_numel(&a->operand), ELEM_GRAIN, op##_range, &j);                                       \
		return 0;                                                                                              \
	}
VFM_CPU_ELEMENT_OPS(X)
#undef X

/* Iterates over rows of the last dimension, or over ranges of one long row. */
struct axpby_job {
	const struct vfm_cpu_kern *kern;
	const struct vfm_axpby *a;
	int64_t piece; /* elements; 0: whole rows */
};

static char *tensor_row(const struct vfm_tensor *t, int64_t r)
{
	int64_t off = 0;

	for (int i = t->ndim - 2; i >= 0; i--) {
		off += r % t->shape[i] * t->stride[i];
		r /= t->shape[i];
	}
	return (char *)t->data + (size_t)off * vfm_dtype_size(t->dtype);
}

static void axpby_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct axpby_job *j = ctx;
	const struct vfm_tensor *x = &j->a->x, *y = &j->a->y;
	bool xb = x->dtype == VFM_BF16, yb = y->dtype == VFM_BF16;

	if (j->piece) {
		j->kern->axpby(j->a->alpha, (char *)x->data + i0 * (xb ? 2 : 4), xb, j->a->beta,
			(char *)y->data + i0 * (yb ? 2 : 4), yb, i1 - i0);
		return;
	}
	for (int64_t r = i0; r < i1; r++)
		j->kern->axpby(
			j->a->alpha, tensor_row(x, r), xb, j->a->beta, tensor_row(y, r), yb, x->shape[x->ndim - 1]);
}

int vfm_cpu_axpby(struct vfm_stream *s, const struct vfm_axpby *a, struct vfm_err *err)
{
	struct axpby_job j = {.kern = vfm_cpu_of(s)->kern, .a = a};
	int64_t n = vfm_numel(&a->x), cols = n ? a->x.shape[a->x.ndim - 1] : 0;

	(void)err;
	if (!n)
		return 0;
	if (vfm_contiguous(&a->x) && vfm_contiguous(&a->y)) {
		j.piece = ELEM_GRAIN;
		vfm_par_for(n, ELEM_GRAIN, axpby_range, &j);
	} else {
		vfm_par_for(n / cols, ELEM_GRAIN / cols + 1, axpby_range, &j);
	}
	return 0;
}

int vfm_cpu_timestep(struct vfm_stream *s, const struct vfm_timestep *a, struct vfm_err *err)
{
	int64_t half = a->out.shape[1] / 2;
	const float *t = a->t.data;

	(void)s;
	(void)err;
	for (int64_t i = 0; i < half; i++) {
		double f = exp(-log((double)a->max_period) * (double)i / (double)half);

		for (int64_t k = 0; k < a->t.shape[0]; k++) {
			float c = (float)cos((double)t[k] * f), n = (float)sin((double)t[k] * f);
			int64_t o = k * 2 * half + i;

			if (a->out.dtype == VFM_BF16) {
				((uint16_t *)a->out.data)[o] = vfm_f32_to_bf16(c);
				((uint16_t *)a->out.data)[o + half] = vfm_f32_to_bf16(n);
			} else {
				((float *)a->out.data)[o] = c;
				((float *)a->out.data)[o + half] = n;
			}
		}
	}
	return 0;
}

VFM_CPU_RANGE(adamw)

int vfm_cpu_adamw(struct vfm_stream *s, const struct vfm_adamw *a, struct vfm_err *err)
{
	struct vfm_cpu_job j = {vfm_cpu_of(s)->kern, a};

	(void)err;
	if (vfm_has(&a->grad_scale) && !isfinite(*(const float *)a->grad_scale.data))
		return 0; /* the step is skipped */
	vfm_par_for(a->v.shape[0], ELEM_GRAIN / 4, adamw_range, &j);
	return 0;
}

static void master_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct vfm_split_master *a = ctx;
	float *x = a->x.data;
	uint16_t *hi = a->hi.data;
	int16_t *lo = a->lo.data;

	if (a->join)
		for (int64_t i = i0; i < i1; i++)
			x[i] = vfm_master_join(hi[i], lo[i]);
	else
		for (int64_t i = i0; i < i1; i++)
			vfm_master_split(x[i], &hi[i], &lo[i]);
}

int vfm_cpu_split_master(struct vfm_stream *s, const struct vfm_split_master *a, struct vfm_err *err)
{
	struct vfm_split_master job = *a;

	(void)s, (void)err;
	vfm_par_for(a->x.shape[0], ELEM_GRAIN, master_range, &job);
	return 0;
}

static void sumsq_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct ops_job *j = ctx;
	const struct vfm_sumsq *a = j->args;
	int64_t n = a->x.shape[0];

	for (int64_t i = i0; i < i1; i++)
		j->dpart[i] =
			j->kern->sumsq((const char *)a->x.data + (size_t)(i * SUM_GRAIN) * vfm_dtype_size(a->x.dtype),
				a->x.dtype == VFM_BF16, n - i * SUM_GRAIN < SUM_GRAIN ? n - i * SUM_GRAIN : SUM_GRAIN);
}

int vfm_cpu_sumsq(struct vfm_stream *s, const struct vfm_sumsq *a, struct vfm_err *err)
{
	int64_t n = (a->x.shape[0] + SUM_GRAIN - 1) / SUM_GRAIN;
	struct ops_job j = {.kern = vfm_cpu_of(s)->kern, .args = a};
	double sum = 0;

	j.dpart = vfm_cpu_ws(s, VFM_WS_PART, (size_t)(n + 1) * sizeof(*j.dpart), err);
	if (!j.dpart)
		return VFM_EENV;
	vfm_par_for(n, 1, sumsq_range, &j);
	for (int64_t i = 0; i < n; i++)
		sum += j.dpart[i];
	*(double *)a->sum.data += sum;
	return 0;
}

int vfm_cpu_clip(struct vfm_stream *s, const struct vfm_clip *a, struct vfm_err *err)
{
	double norm = sqrt(*(const double *)a->sum.data);
	bool finite = isfinite((float)norm) && (!vfm_has(&a->loss) || isfinite(*(const double *)a->loss.data));

	(void)s;
	(void)err;
	*(float *)a->norm.data = (float)norm;
	*(float *)a->scale.data = !finite               ? NAN
		: a->max_norm > 0 && norm > a->max_norm ? (float)(a->max_norm / norm)
							: 1.0f;
	return 0;
}

static void fill_range(int64_t i0, int64_t i1, void *ctx)
{
	enum { BUF = 1024 };
	const struct ops_job *j = ctx;
	const struct vfm_fill *a = j->args;
	float buf[BUF];

	for (int64_t i = i0; i < i1; i += BUF) {
		int64_t n = i1 - i < BUF ? i1 - i : BUF;

		if (a->std != 0)
			j->kern->normals(&a->rng, a->first + i, n, buf);
		for (int64_t k = 0; k < n; k++)
			// NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): normals() filled it
			buf[k] = a->std != 0 ? a->mean + a->std * buf[k] : a->mean;
		if (a->x.dtype == VFM_BF16)
			j->kern->axpby(1, buf, false, 0, (uint16_t *)a->x.data + i, true, n);
		else
			memcpy((float *)a->x.data + i, buf, (size_t)n * sizeof(float));
	}
}

int vfm_cpu_fill(struct vfm_stream *s, const struct vfm_fill *a, struct vfm_err *err)
{
	struct ops_job j = {.kern = vfm_cpu_of(s)->kern, .args = a};

	(void)err;
	vfm_par_for(a->x.shape[0], ELEM_GRAIN, fill_range, &j);
	return 0;
}

const struct vfm_ops vfm_cpu_ops = {
#define X(op) .op = vfm_cpu_##op,
	VFM_OP_LIST(X)
#undef X
		.conv3d_packed_size = vfm_cpu_conv3d_packed_size,
	.conv3d_pack = vfm_cpu_conv3d_pack,
};
