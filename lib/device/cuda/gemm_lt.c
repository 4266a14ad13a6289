/* gemm_lt.c - runs GEMMs with cuBLASLt, and times its algorithms on an idle device. */
#include "device/cuda/gemm.h"

#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/stats.h"
#include "device/cuda/cuda_dev.h"
#include "device/cuda/cuda_stream.h"

enum {
	CANDIDATES = 16,
	RUNS = 5, /* timed; their median counts */
	SIDES = 4,
	SETS = 32, /* most copies of the operands */
	SEQUENCE_US = 200,
	MOST_TIMES = 16,
};
/* Longest wait for an idle device, and all waits that were in vain: in a pipeline a receive may be posted. */
static const double IDLE_S = 0.2, PATIENCE_S = 1;
static const int64_t MOST_SCRATCH = INT64_C(6) << 30; /* bytes of operands for timing */

/* Operands for timing.  Each run takes the next set, so that small operands are not in the L2 cache, as in training. */
struct gemm_trial {
	struct vfm_gemm_op op; /* without addresses; perhaps with fewer rows than the op of the caller */
	struct vfm_stream *s;
	char *mem;
	size_t bytes, set_bytes, ws_bytes;
	int sets, next;
};

struct vfm_cuda_gemm {
	struct vfm_cuda *c;
	cublasLtHandle_t lt;
	struct vfm_gemm_lib lib;
	struct vfm_gemm_chooser *chooser;
	struct vfm_stream *asked_by; /* within vfm_lt_choose */
	struct gemm_trial trial;
	bool tune, tf32, disturbed;
	double patience_s; /* left for waits until the device is idle */
	size_t l2;         /* bytes */
	cudaEvent_t from, to;
	struct vfm_stream *side[SIDES];
	struct vfm_event *forked, *joined[SIDES];
};

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == VFM_LT_ALGO, "the file keeps whole algorithms");

/* ---- life ------------------------------------------------------------------------------------------ */

static int lt_check(cublasStatus_t st, const char *what, struct vfm_err *err)
{
	return st == CUBLAS_STATUS_SUCCESS ? 0
					   : vfm_fail(err, VFM_EENV, "gemm: %s: %s", what, cublasLtGetStatusString(st));
}

static const struct vfm_gemm_lib library;

static int open_gemm(struct vfm_cuda_gemm *g, struct vfm_err *err)
{
	char name[128], *path;
	enum vfm_gemm_mode mode;
	int l2 = 0;

	TRY(vfm_gemm_mode_of_env(&mode, err));
	g->tune = vfm_cuda_asked("VFM_CUDA_TUNE", true);
	g->tf32 = vfm_cuda_asked("VFM_CUDA_TF32", false);
	g->patience_s = PATIENCE_S;
	TRY(lt_check(cublasLtCreate(&g->lt), "cublasLtCreate", err));
	TRY(vfm_cuda_check(cudaEventCreate(&g->from), "cudaEventCreate", err));
	TRY(vfm_cuda_check(cudaEventCreate(&g->to), "cudaEventCreate", err));
	TRY(vfm_cuda_check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, g->c->ordinal), "gemm", err));
	g->l2 = (size_t)l2;
	vfm_lt_cache_name(g->c->dev.name, cublasLtGetVersion(), name, sizeof(name));
	path = g->c->deterministic ? NULL : vfm_cuda_cache_path(name); /* other runs write it */
	g->lib = library;
	g->lib.warn = g->c->warn;
	g->chooser = vfm_gemm_chooser_new(&g->lib, g, mode, path, g->c->local_size == 1);
	free(path);
	return 0;
}

static struct vfm_cuda_gemm *gemm_of(struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_cuda *c = vfm_cuda_of(s);
	struct vfm_cuda_gemm *g = c->gemm;

	if (g)
		return g;
	g = vfm_calloc(1, sizeof(*g));
	g->c = c;
	if (open_gemm(g, err) < 0) {
		vfm_cuda_gemm_free(g);
		return NULL;
	}
	c->gemm = g;
	return g;
}

void vfm_cuda_gemm_free(struct vfm_cuda_gemm *g)
{
	const struct vfm_dev_table *t;

	if (!g)
		return;
	t = g->c->dev.t;
	for (int i = 0; i < SIDES; i++) {
		if (g->joined[i])
			t->event_free(g->joined[i]);
		if (g->side[i])
			t->stream_free(g->side[i]);
	}
	if (g->forked)
		t->event_free(g->forked);
	if (g->from)
		(void)cudaEventDestroy(g->from);
	if (g->to)
		(void)cudaEventDestroy(g->to);
	if (g->lt)
		(void)cublasLtDestroy(g->lt);
	vfm_gemm_chooser_free(g->chooser);
	free(g);
}

/* ---- a problem in the library's terms -------------------------------------------------------------------- */

struct terms {
	cublasLtMatmulDescOpaque_t op;
	cublasLtMatrixLayoutOpaque_t a, b, c;
};

static cudaDataType_t lt_type(enum vfm_dtype t)
{
	switch (t) {
	case VFM_BF16:
		return CUDA_R_16BF;
	case VFM_F8E4M3:
		return CUDA_R_8F_E4M3;
	case VFM_F8E5M2:
		return CUDA_R_8F_E5M2;
	default:
		return CUDA_R_32F;
	}
}

static cublasLtEpilogue_t epilogue_of(unsigned epi)
{
	unsigned e = 0;

	e |= epi & VFM_LT_BIAS ? CUBLASLT_EPILOGUE_BIAS : 0u;
	e |= epi & VFM_LT_GELU ? CUBLASLT_EPILOGUE_GELU : 0u;
	e |= epi & VFM_LT_AUX ? (unsigned)(CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU) : 0u;
	e |= epi & VFM_LT_DGELU ? CUBLASLT_EPILOGUE_DGELU : 0u;
	e |= epi & VFM_LT_BGRADB ? CUBLASLT_EPILOGUE_BGRADB : 0u;
	return e ? (cublasLtEpilogue_t)e : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Attributes are set one by one; `ok` becomes false if one is rejected. */
static void set_lt_attribute(
	struct terms *t, bool *ok, cublasLtMatmulDescAttributes_t what, const void *value, size_t size)
{
	*ok = *ok && cublasLtMatmulDescSetAttribute(&t->op, what, value, size) == CUBLAS_STATUS_SUCCESS;
}
#define SET(what, value) set_lt_attribute(t, &ok, CUBLASLT_MATMUL_DESC_##what, &(value), sizeof(value))

static bool layout(cublasLtMatrixLayoutOpaque_t *l, enum vfm_dtype dt, bool trans, int64_t rows, int64_t cols,
	int64_t ld, int64_t batch, int64_t stride)
{
	int32_t count = (int32_t)batch;

	if (cublasLtMatrixLayoutInit(l, lt_type(dt), (uint64_t)(trans ? cols : rows), (uint64_t)(trans ? rows : cols),
		    ld) != CUBLAS_STATUS_SUCCESS)
		return false;
	return batch == 1 ||
		(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)) ==
				CUBLAS_STATUS_SUCCESS &&
			cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
				sizeof(stride)) == CUBLAS_STATUS_SUCCESS);
}

static bool terms_of(struct terms *t, const struct vfm_lt_problem *p, const struct vfm_lt_args *x)
{
	cublasOperation_t ta = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtEpilogue_t epi = epilogue_of(p->epi);
	int32_t bias_type = (int32_t)lt_type(p->bias), aux_type = (int32_t)lt_type(p->c);
	int32_t sms = p->sms;
	int8_t fast = 1;
	bool ok = cublasLtMatmulDescInit(&t->op, p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
			  CUDA_R_32F) == CUBLAS_STATUS_SUCCESS;

	SET(TRANSA, ta);
	SET(TRANSB, tb);
	SET(EPILOGUE, epi);
	if (p->epi & (VFM_LT_BIAS | VFM_LT_BGRADB)) {
		SET(BIAS_POINTER, x->bias);
		SET(BIAS_DATA_TYPE, bias_type);
		if (p->batch > 1)
			SET(BIAS_BATCH_STRIDE, p->stride_bias);
	}
	if (p->epi & (VFM_LT_AUX | VFM_LT_DGELU)) {
		SET(EPILOGUE_AUX_POINTER, x->aux);
		SET(EPILOGUE_AUX_LD, p->ld_aux);
		SET(EPILOGUE_AUX_DATA_TYPE, aux_type);
		if (p->batch > 1)
			SET(EPILOGUE_AUX_BATCH_STRIDE, p->stride_aux);
	}
	if (p->scaled) {
		SET(A_SCALE_POINTER, x->scale_a);
		SET(B_SCALE_POINTER, x->scale_b);
	}
	if (p->fast8)
		SET(FAST_ACCUM, fast);
	if (p->sms)
		SET(SM_COUNT_TARGET, sms);
	return ok && layout(&t->a, p->a, p->ta, p->m, p->k, p->lda, p->batch, p->stride_a) &&
		layout(&t->b, p->b, p->tb, p->k, p->n, p->ldb, p->batch, p->stride_b) &&
		layout(&t->c, p->c, false, p->m, p->n, p->ldc, p->batch, p->stride_c);
}

int vfm_lt_run(struct vfm_stream *s, const struct vfm_gemm_choice *c, const struct vfm_lt_args *x, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);
	const float alpha = 1, beta = c->p.beta ? 1 : 0;
	cublasLtMatmulAlgo_t algo;
	struct terms t;

	if (!g)
		return VFM_EENV;
	memcpy(&algo, c->algo.opaque, sizeof(algo));
	if (!terms_of(&t, &c->p, x))
		return vfm_fail(err, VFM_EENV, "gemm: cuBLASLt refuses the description of the product");
	return lt_check(cublasLtMatmul(g->lt, &t.op, &alpha, x->a, &t.a, x->b, &t.b, &beta, x->c, &t.c, x->c, &t.c,
				&algo, x->ws, c->algo.ws, vfm_cuda_stream(s)),
		"cublasLtMatmul", err);
}

/* ---- algorithms ------------------------------------------------------------------------------------------------ */

/* For questions about a problem only the alignment of the vectors matters. */
static const struct vfm_lt_args nowhere = {
	.bias = (void *)65536, .aux = (void *)65536, .scale_a = (const float *)65536, .scale_b = (const float *)65536};

static int list_algorithms(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *out, int most)
{
	struct vfm_cuda_gemm *g = ctx;
	cublasLtMatmulPreferenceOpaque_t pref;
	cublasLtMatmulHeuristicResult_t found[CANDIDATES];
	/* Allows only split-K with f32 partial sums in a fixed order. */
	uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
		 align[3] = {(uint32_t)p->align_a, (uint32_t)p->align_b, (uint32_t)p->align_c};
	uint64_t bytes = ws;
	struct terms t;
	int got = 0, n = 0;

	if (!terms_of(&t, p, &nowhere) || cublasLtMatmulPreferenceInit(&pref) != CUBLAS_STATUS_SUCCESS)
		return 0;
#define PREF(what, value)                                                                                              \
	(void)cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_##what, &(value), sizeof(value))
	PREF(MAX_WORKSPACE_BYTES, bytes);
	PREF(REDUCTION_SCHEME_MASK, sums);
	PREF(MIN_ALIGNMENT_A_BYTES, align[0]);
	PREF(MIN_ALIGNMENT_B_BYTES, align[1]);
	PREF(MIN_ALIGNMENT_C_BYTES, align[2]);
	PREF(MIN_ALIGNMENT_D_BYTES, align[2]);
#undef PREF
	if (cublasLtMatmulAlgoGetHeuristic(g->lt, &t.op, &t.a, &t.b, &t.c, &t.c, &pref, CANDIDATES, found, &got) !=
		CUBLAS_STATUS_SUCCESS)
		return 0;
	for (int i = 0; i < got && n < most; i++)
		if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= ws) {
			memcpy(out[n].opaque, &found[i].algo, sizeof(found[i].algo));
			out[n++].ws = found[i].workspaceSize;
		}
	return n;
}

static bool supports_algorithm(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *a)
{
	struct vfm_cuda_gemm *g = ctx;
	cublasLtMatmulHeuristicResult_t r = {0};
	cublasLtMatmulAlgo_t algo;
	struct terms t;

	memcpy(&algo, a->opaque, sizeof(algo));
	if (!terms_of(&t, p, &nowhere) ||
		cublasLtMatmulAlgoCheck(g->lt, &t.op, &t.a, &t.b, &t.c, &t.c, &algo, &r) != CUBLAS_STATUS_SUCCESS ||
		r.state != CUBLAS_STATUS_SUCCESS || r.workspaceSize > ws)
		return false;
	a->ws = r.workspaceSize;
	return true;
}

/* ---- timing ---------------------------------------------------------------------------------------------------- */

/* Gives operand t, which is `batch` elements from the next of its batch, the next memory of a set, with the alignment
 * that it has.  *at: offset in the set.  base NULL: counts only. */
static void place_operand(struct vfm_tensor *t, int64_t count, int64_t batch, char *base, size_t *at)
{
	size_t size = vfm_dtype_size(t->dtype), skew = (uintptr_t)t->data % 256;
	int64_t rows = t->ndim > 1 ? t->shape[0] : 1, ld = t->ndim > 1 ? t->stride[0] : t->shape[0];

	if (!vfm_has(t))
		return;
	*at = (*at + 255) / 256 * 256 + skew;
	t->data = base ? base + *at : (char *)256 + skew; /* present */
	*at += (size_t)((count - 1) * batch + rows * ld) * size;
}

/* Places the operands of an op in a set; returns its bytes. */
static size_t place_operands(struct vfm_gemm_op *op, char *base)
{
	const struct vfm_gemm_batch *b = &op->batch;
	struct vfm_gemm *g = &op->g;
	size_t at = 0;

	place_operand(&g->a, b->count, b->a, base, &at);
	place_operand(&g->b, b->count, b->b, base, &at);
	place_operand(&g->c, b->count, b->c, base, &at);
	place_operand(&g->bias, b->count, b->bias, base, &at);
	place_operand(&g->aux, b->count, b->aux, base, &at);
	place_operand(&g->a_rowsum, b->count, b->rowsum, base, &at);
	place_operand(&g->scale_a, 1, 0, base, &at);
	place_operand(&g->scale_b, 1, 0, base, &at);
	return (at + 255) / 256 * 256;
}

static bool halve_rows(struct vfm_gemm_op *op)
{
	int64_t n = vfm_gemm_rows(&op->g) / 2 / 256 * 256;

	if (n < 4096 || op->batch.count > 1)
		return false;
	vfm_gemm_set_rows(&op->g, n);
	return true;
}

static int fill_operands(struct gemm_trial *t, struct vfm_err *err)
{
	uint64_t seed = 0;

	for (int k = 0; k < t->sets; k++) {
		struct vfm_gemm_op op = t->op;
		struct vfm_tensor *x[] = {
			&op.g.a, &op.g.b, &op.g.c, &op.g.bias, &op.g.aux, &op.g.a_rowsum, &op.g.scale_a, &op.g.scale_b};
		char *base = t->mem + (size_t)k * t->set_bytes, *end;

		place_operands(&op, base);
		for (int i = 0; i < 8; i++, seed += UINT64_C(1) << 40) {
			if (!vfm_has(x[i]))
				continue;
			end = base + t->set_bytes; /* of a batch: up to the next operand */
			for (int k2 = i + 1; k2 < 8; k2++)
				if (vfm_has(x[k2])) {
					end = x[k2]->data;
					break;
				}
			TRY(vfm_gemm_noise(t->s, x[i]->dtype, x[i]->data,
				(end - (char *)x[i]->data) / (int64_t)vfm_dtype_size(x[i]->dtype), seed, err));
		}
	}
	return 0;
}

/* Waits until nothing else runs: the update of the step before, a collective or a copy would change the times.  A
 * collective may wait for a rank that waits for this one, so it gives up after a while. */
static void wait_for_idle_device(struct vfm_cuda_gemm *g)
{
	double t0 = vfm_now();

	if (vfm_cuda_idle(g->c, fmin(IDLE_S, fmax(g->patience_s, 0))))
		return;
	g->patience_s -= vfm_now() - t0;
	if (!g->disturbed && g->c->warn)
		g->c->warn("gemm: implementations are timed while other work runs, which makes the choice worse");
	g->disturbed = true;
}

/* A capture refuses sizes that were never timed, so that the choice does not depend on where they occur first. */
static int begin_timing(void *ctx, const struct vfm_gemm_op *op, const char **why, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = ctx;
	struct vfm_stream *s = g->asked_by;
	struct gemm_trial *t = &g->trial;
	int rc;

	*why = NULL;
	if (!g->tune || g->c->deterministic)
		return 0;
	TRY(vfm_cuda_refuse(g->c, vfm_cuda_stream(s), "gemm: timing a size for the first time", true, err));
	wait_for_idle_device(g);
	*t = (struct gemm_trial){.op = *op, .s = s};
	/* that of the library, and vectors of our kernels, whose number is that of the rows or columns */
	t->ws_bytes = op->ws + (size_t)op->batch.count * (size_t)(op->g.c.shape[0] + op->g.c.shape[1]) * 4 * 64 + 4096;
	for (;;) {
		struct vfm_gemm_op at = t->op;

		t->set_bytes = place_operands(&at, NULL);
		t->sets = (int)(4 * g->l2 / t->set_bytes) + 1;
		t->sets = t->sets < SETS ? t->sets : SETS;
		t->bytes = t->ws_bytes + (size_t)t->sets * t->set_bytes;
		if ((int64_t)t->bytes <= MOST_SCRATCH)
			t->mem = vfm_dev_borrow(s, t->bytes, "operands to time a matrix product");
		if (t->mem || !halve_rows(&t->op))
			break;
	}
	*why = "no memory for operands to time it";
	if (!t->mem)
		return 0;
	rc = fill_operands(t, err);
	if (rc < 0)
		vfm_dev_free(s, t->mem, t->bytes);
	return rc < 0 ? rc : 1;
}

static void end_timing(void *ctx)
{
	struct gemm_trial *t = &((struct vfm_cuda_gemm *)ctx)->trial;

	t->s->dev->tuned++;
	vfm_dev_free(t->s, t->mem, t->bytes);
	*t = (struct gemm_trial){0};
}

/* Enqueues the op once, with the next operands. */
static int run_trial(struct gemm_trial *t, struct vfm_gemm_choice *c, struct vfm_err *err)
{
	struct vfm_gemm_op op = t->op;

	place_operands(&op, t->mem + (size_t)(t->next++ % t->sets) * t->set_bytes);
	c->p = vfm_lt_problem_of(&op, &c->path);
	TRY(vfm_gemm_enqueue(t->s, &op, c, t->mem + (size_t)t->sets * t->set_bytes, err));
	return vfm_cuda_launched(t->s, "gemm", err);
}

/* Sets *us to the mean time of `times` runs that are enqueued together.  Blocks the host. */
static int time_sequence(struct vfm_cuda_gemm *g, struct vfm_gemm_choice *c, int times, double *us, struct vfm_err *err)
{
	cudaStream_t st = vfm_cuda_stream(g->trial.s);
	float ms;

	TRY(vfm_cuda_check(cudaEventRecord(g->from, st), "gemm", err));
	for (int i = 0; i < times; i++)
		TRY(run_trial(&g->trial, c, err));
	TRY(vfm_cuda_check(cudaEventRecord(g->to, st), "gemm", err));
	TRY(vfm_cuda_check(cudaEventSynchronize(g->to), "gemm", err));
	TRY(vfm_cuda_check(cudaEventElapsedTime(&ms, g->from, g->to), "gemm", err));
	*us = (double)ms * 1e3 / times;
	return 0;
}

/* Takes the median of RUNS times.  Small ops run several times in each: alone, the device would wait for the host
 * between the launches of an op, which it does not in a training step. */
static int time_runs(struct vfm_cuda_gemm *g, struct vfm_gemm_choice *c, double best, double *us, struct vfm_err *err)
{
	double x[RUNS];
	int n = 0, times;

	TRY(run_trial(&g->trial, c, err)); /* loads the kernels */
	TRY(time_sequence(g, c, 1, us, err));
	times = *us < SEQUENCE_US ? (int)(SEQUENCE_US / fmax(*us, 1)) + 1 : 1;
	times = times < MOST_TIMES ? times : MOST_TIMES;
	while (n < RUNS) {
		TRY(time_sequence(g, c, times, &x[n++], err));
		if (best >= 0 && x[0] > 1.25 * best)
			break;
	}
	*us = vfm_spread_of(x, (size_t)n).median;
	return 0;
}

static int time_choice(void *ctx, const struct vfm_gemm_choice *c, double best, double *us, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = ctx;
	struct vfm_gemm_choice mine = *c;
	struct vfm_err refused = {0};

	if (time_runs(g, &mine, best, us, &refused) == 0)
		return 1;
	/* rejected at the call: try the next; a failed device: stop */
	TRY(vfm_cuda_check(cudaStreamSynchronize(vfm_cuda_stream(g->trial.s)), "gemm", err));
	return 0;
}

static const struct vfm_gemm_lib library = {
	list_algorithms, supports_algorithm, begin_timing, time_choice, end_timing, NULL};

int vfm_lt_choose(
	struct vfm_stream *s, struct vfm_gemm_op *op, bool part, struct vfm_gemm_choice *out, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);
	int rc;

	if (!g)
		return VFM_EENV;
	op->tf32 = g->tf32;
	op->sms = vfm_gemm_sms(g->c->n_sm, vfm_dev_units_taken(s->dev));
	g->asked_by = s;
	rc = vfm_gemm_choose(g->chooser, op, out, err);
	if (rc >= 0 && !part) {
		s->dev->slow_gemm += out->refused;
		s->dev->heuristic_gemm += out->untimed;
	}
	return rc;
}

/* ---- side by side ---------------------------------------------------------------------------------------------- */

int vfm_lt_fork(struct vfm_stream *s, struct vfm_stream *const **sides, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);

	if (!g)
		return VFM_EENV;
	for (int i = 0; i < SIDES; i++) {
		if (!g->side[i] && !(g->side[i] = s->dev->t->stream_new(s->dev, true, err)))
			return VFM_EENV;
		TRY(i == 0 ? vfm_stream_follow(g->side[i], s, &g->forked, err)
			   : s->dev->t->event_wait(g->forked, g->side[i], err));
	}
	*sides = g->side;
	return SIDES;
}

int vfm_lt_join(struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);

	if (!g)
		return VFM_EENV;
	for (int i = 0; i < SIDES; i++)
		TRY(vfm_stream_follow(s, g->side[i], &g->joined[i], err));
	return 0;
}
