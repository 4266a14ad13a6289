#include "cuda/gemm_lt.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "cuda/cuda_dev.h"

enum {
	N_ID = 25,
	N_BUCKETS = 4096,
	MOST_CHOICES = 32768, /* groups of experts always have new sizes */
	CANDIDATES = 16,
	RUNS = 4,
	MOST_SCRATCH = 1 << 30, /* bytes of a substitute for a C that must not change */
	MOST_US = 2000000,      /* time for the candidates of one problem */
	SIDES = 4,
};

/* The choice for one problem. */
struct choice {
	int64_t id[N_ID];
	bool ok; /* the library supports it */
	cublasLtMatmulAlgo_t algo;
	size_t ws;
	double us; /* negative: not timed */
	struct choice *next;
};

struct vfm_cuda_gemm {
	struct vfm_cuda *c;
	cublasLtHandle_t lt;
	struct vfm_lt_cache cache;
	bool tune, tf32;
	struct choice *bucket[N_BUCKETS];
	size_t n;
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

static bool asked(const char *env, bool def)
{
	const char *v = getenv(env);

	return v && *v ? strcmp(v, "0") != 0 : def;
}

static struct vfm_cuda_gemm *gemm_of(struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_cuda *c = vfm_cuda_of(s);
	struct vfm_cuda_gemm *g = c->gemm;
	char name[128], *path;

	if (g)
		return g;
	g = vfm_calloc(1, sizeof(*g));
	g->c = c;
	vfm_lt_cache_name(c->dev.name, cublasLtGetVersion(), name, sizeof(name));
	path = vfm_cuda_cache_path(name);
	vfm_lt_cache_open(&g->cache, path);
	free(path);
	g->tune = asked("VFM_CUDA_TUNE", true);
	g->tf32 = asked("VFM_CUDA_TF32", false);
	if (lt_check(cublasLtCreate(&g->lt), "cublasLtCreate", err) < 0 ||
		vfm_cuda_check(cudaEventCreate(&g->from), "cudaEventCreate", err) < 0 ||
		vfm_cuda_check(cudaEventCreate(&g->to), "cudaEventCreate", err) < 0) {
		vfm_cuda_gemm_free(g);
		return NULL;
	}
	c->gemm = g;
	return g;
}

static void forget(struct vfm_cuda_gemm *g)
{
	for (size_t i = 0; i < N_BUCKETS; i++)
		for (struct choice *e = g->bucket[i], *next; e; e = next) {
			next = e->next;
			free(e);
		}
	memset(g->bucket, 0, sizeof(g->bucket));
	g->n = 0;
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
	forget(g);
	vfm_lt_cache_close(&g->cache);
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
	return ok && layout(&t->a, p->a, p->ta, p->m, p->k, p->lda, p->batch, p->stride_a) &&
		layout(&t->b, p->b, p->tb, p->k, p->n, p->ldb, p->batch, p->stride_b) &&
		layout(&t->c, p->c, false, p->m, p->n, p->ldc, p->batch, p->stride_c);
}

static cublasStatus_t matmul(struct vfm_cuda_gemm *g, struct vfm_stream *s, const struct vfm_lt_problem *p,
	const struct vfm_lt_args *x, const cublasLtMatmulAlgo_t *algo)
{
	const float alpha = 1, beta = p->beta ? 1 : 0;
	struct terms t;

	if (!terms_of(&t, p, x))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return cublasLtMatmul(g->lt, &t.op, &alpha, x->a, &t.a, x->b, &t.b, &beta, x->c, &t.c, x->c, &t.c, algo, x->ws,
		x->ws_bytes, vfm_cuda_stream(s));
}

/* ---- candidates --------------------------------------------------------------------------------------------- */

static int candidates(struct vfm_cuda_gemm *g, const struct vfm_lt_problem *p, struct terms *t, size_t ws, int most,
	cublasLtMatmulHeuristicResult_t *out)
{
	cublasLtMatmulPreferenceOpaque_t pref;
	cublasLtMatmulHeuristicResult_t found[CANDIDATES];
	/* Allows only split-K with f32 partial sums in a fixed order. */
	uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
		 align[3] = {(uint32_t)p->align_a, (uint32_t)p->align_b, (uint32_t)p->align_c};
	uint64_t bytes = ws;
	int got = 0, n = 0;

	if (cublasLtMatmulPreferenceInit(&pref) != CUBLAS_STATUS_SUCCESS)
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
	if (cublasLtMatmulAlgoGetHeuristic(g->lt, &t->op, &t->a, &t->b, &t->c, &t->c, &pref, CANDIDATES, found, &got) !=
		CUBLAS_STATUS_SUCCESS)
		return 0;
	for (int i = 0; i < got && n < most; i++)
		if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize <= ws)
			out[n++] = found[i];
	return n;
}

/* ---- timing --------------------------------------------------------------------------------------------------- */

struct attempt {
	struct vfm_cuda_gemm *g;
	struct vfm_stream *s;
	const struct vfm_lt_problem *p;
	struct vfm_lt_args x;
	const cublasLtMatmulAlgo_t *algo;
};

static int attempt(void *ctx, void *scratch, struct vfm_err *err)
{
	struct attempt *a = ctx;

	(void)scratch;
	return lt_check(matmul(a->g, a->s, a->p, &a->x, a->algo), "cublasLtMatmul", err);
}

/* Returns the minimum time of a few runs in microseconds, after a warm-up; a candidate much slower than `best` runs
 * once.  Blocks the host. */
static int time_of(struct vfm_cuda_gemm *g, struct vfm_stream *s, const struct vfm_lt_timed *what, void *scratch,
	double best, double *us, struct vfm_err *err)
{
	cudaStream_t st = vfm_cuda_stream(s);
	float ms;

	TRY(what->fn(what->ctx, scratch, err));
	*us = -1;
	for (int i = 0; i < RUNS; i++) {
		TRY(vfm_cuda_check(cudaEventRecord(g->from, st), "gemm", err));
		TRY(what->fn(what->ctx, scratch, err));
		TRY(vfm_cuda_check(cudaEventRecord(g->to, st), "gemm", err));
		TRY(vfm_cuda_check(cudaEventSynchronize(g->to), "gemm", err));
		TRY(vfm_cuda_check(cudaEventElapsedTime(&ms, g->from, g->to), "gemm", err));
		if (*us < 0 || (double)ms * 1e3 < *us)
			*us = (double)ms * 1e3;
		if (best >= 0 && *us > 1.3 * best)
			break;
	}
	return 0;
}

/* Returns 1: time it.  A capture refuses sizes that were never timed, so that the choice does not depend on where they
 * occur first. */
static int may_time(struct vfm_cuda_gemm *g, struct vfm_stream *s, struct vfm_err *err)
{
	if (!g->tune || g->c->deterministic)
		return 0;
	TRY(vfm_cuda_refuse(g->c, vfm_cuda_stream(s), "gemm: timing a size for the first time", true, err));
	return 1;
}

/* Returns the bytes of the substitute for a C that is added to. */
static size_t stand_in_c(const struct vfm_lt_problem *p)
{
	return p->beta ? (size_t)((p->batch - 1) * p->stride_c + (p->n - 1) * p->ldc + p->m) * vfm_dtype_size(p->c) : 0;
}

/* Whether the product may be repeated: it does not change its operands, and memory suffices. */
static bool timeable(const struct vfm_lt_problem *p, const struct vfm_lt_args *x)
{
	return stand_in_c(p) <= MOST_SCRATCH && !(p->epi & VFM_LT_DGELU && x->aux == x->c);
}

/* Memory for timing: scratch of the library, substitutes for a bias, and for C if C is added to.  NULL: no timing. */
static void *stand_in(struct attempt *a)
{
	const struct vfm_lt_problem *p = a->p;
	size_t vector = (size_t)(p->batch * (p->m > p->n ? p->m : p->n)) * 4;
	size_t c = stand_in_c(p);
	size_t at = (a->x.ws_bytes + vector + 255) / 256 * 256;
	void *mem;

	if (cudaMalloc(&mem, at + c) != cudaSuccess) {
		(void)cudaGetLastError();
		return NULL;
	}
	a->x.ws = mem;
	if (p->epi & (VFM_LT_BIAS | VFM_LT_BGRADB))
		a->x.bias = (char *)mem + a->x.ws_bytes;
	if (p->beta)
		a->x.c = (char *)mem + at;
	return mem;
}

/* Finds the fastest of n candidates.  1: *best is set; 0: none could be timed. */
static int fastest(struct attempt *a, const cublasLtMatmulHeuristicResult_t *list, int n, struct vfm_lt_entry *best,
	struct vfm_err *err)
{
	const struct vfm_lt_timed what = {.fn = attempt, .ctx = a};
	void *mem = stand_in(a);
	double spent = 0, us;
	int rc = 0;

	best->us = -1;
	for (int i = 0; mem && i < n && spent < MOST_US && rc >= 0; i++) {
		a->algo = &list[i].algo;
		rc = time_of(a->g, a->s, &what, NULL, best->us, &us, err);
		if (rc < 0) { /* rejected at the call: try the next; a failed device: stop */
			rc = vfm_cuda_check(cudaStreamSynchronize(vfm_cuda_stream(a->s)), "gemm", err);
			continue;
		}
		spent += us * (RUNS + 1);
		if (best->us < 0 || us < best->us) {
			best->us = us;
			memcpy(best->algo, &list[i].algo, sizeof(list[i].algo));
			best->ws = (int64_t)list[i].workspaceSize;
		}
	}
	if (mem)
		(void)cudaFree(mem);
	return rc < 0 ? rc : best->us >= 0;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static void id_of(const struct vfm_lt_problem *p, int64_t id[N_ID])
{
	const int64_t all[N_ID] = {p->a, p->b, p->c, p->bias, p->ta, p->tb, p->beta, p->tf32, p->fast8, p->scaled,
		p->epi, p->m, p->n, p->k, p->lda, p->ldb, p->ldc, p->ld_aux, p->batch, p->stride_a, p->stride_b,
		p->stride_c,
		(int64_t)p->align_a | (int64_t)p->align_b << 16 | (int64_t)p->align_c << 32 |
			(int64_t)p->align_aux << 48,
		p->stride_bias, p->stride_aux};

	memcpy(id, all, sizeof(all));
}

static struct choice *known(struct vfm_cuda_gemm *g, const struct vfm_lt_problem *p, struct choice ***slot)
{
	int64_t id[N_ID];
	struct choice **at;

	id_of(p, id);
	at = &g->bucket[vfm_fnv64(id, sizeof(id)) % N_BUCKETS];
	while (*at && memcmp((*at)->id, id, sizeof(id)) != 0)
		at = &(*at)->next;
	if (slot)
		*slot = at;
	return *at;
}

/* Whether the library supports this algorithm for exactly this problem. */
static bool fits_scratch(
	struct vfm_cuda_gemm *g, struct terms *t, const struct vfm_lt_entry *e, size_t ws, struct choice *c)
{
	cublasLtMatmulHeuristicResult_t r = {0};

	memcpy(&c->algo, e->algo, sizeof(c->algo));
	if (cublasLtMatmulAlgoCheck(g->lt, &t->op, &t->a, &t->b, &t->c, &t->c, &c->algo, &r) != CUBLAS_STATUS_SUCCESS ||
		r.state != CUBLAS_STATUS_SUCCESS || r.workspaceSize > ws)
		return false;
	c->ws = r.workspaceSize;
	c->us = e->us;
	return true;
}

static int choose_algorithm(struct vfm_cuda_gemm *g, struct vfm_stream *s, const struct vfm_lt_problem *p,
	const struct vfm_lt_args *x, bool tune, struct choice *c, struct vfm_err *err)
{
	cublasLtMatmulHeuristicResult_t list[CANDIDATES];
	struct vfm_lt_entry found = {.us = -1};
	const struct vfm_lt_entry *e;
	struct vfm_lt_args seen = *x;
	struct terms t;
	int n, rc;

	c->ok = false;
	c->us = -1;
	if (!seen.bias)
		seen.bias = (void *)(uintptr_t)65536; /* only its alignment matters */
	if (p->m > INT32_MAX || p->n > INT32_MAX || p->k > INT32_MAX || !terms_of(&t, p, &seen))
		return 0;
	vfm_lt_key(p, found.key);
	e = vfm_lt_cache_find(&g->cache, found.key);
	c->ok = e && fits_scratch(g, &t, e, x->ws_bytes, c);
	if (c->ok)
		return 0;
	n = candidates(g, p, &t, x->ws_bytes, CANDIDATES, list);
	if (!n)
		return 0;
	rc = !e && tune && timeable(p, x) ? may_time(g, s, err) : 0;
	if (rc < 0)
		return rc;
	if (rc) {
		struct attempt a = {.g = g, .s = s, .p = p, .x = *x};

		rc = fastest(&a, list, n, &found, err);
		if (rc < 0)
			return rc;
		e = rc ? vfm_lt_cache_add(&g->cache, &found, g->c->local_size == 1) : NULL;
		c->ok = e && fits_scratch(g, &t, e, x->ws_bytes, c);
		if (c->ok)
			return 0;
	}
	c->ok = true;
	c->algo = list[0].algo;
	c->ws = list[0].workspaceSize;
	c->us = -1;
	return 0;
}

static struct vfm_lt_problem as_asked(const struct vfm_cuda_gemm *g, const struct vfm_lt_problem *p)
{
	struct vfm_lt_problem q = *p;

	q.tf32 = g->tf32 && p->a == VFM_F32;
	return q;
}

int vfm_lt_find(struct vfm_stream *s, const struct vfm_lt_problem *p0, const struct vfm_lt_args *x, bool tune,
	double *us, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);
	struct vfm_lt_problem p;
	struct choice *c, **slot;

	if (!g)
		return VFM_EENV;
	p = as_asked(g, p0);
	c = known(g, &p, &slot);
	if (!c || (c->ok && c->ws > x->ws_bytes)) {
		struct choice fresh;

		TRY(choose_algorithm(g, s, &p, x, tune, &fresh, err));
		if (!c && g->n >= MOST_CHOICES) {
			forget(g);
			(void)known(g, &p, &slot);
		}
		if (!c) {
			c = *slot = vfm_calloc(1, sizeof(*c));
			g->n++;
		}
		fresh.next = c->next;
		id_of(&p, fresh.id);
		*c = fresh;
	}
	*us = c->us;
	return c->ok;
}

int vfm_lt_run(struct vfm_stream *s, const struct vfm_lt_problem *p0, const struct vfm_lt_args *x, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);
	struct vfm_lt_problem p;
	struct choice *c;

	if (!g)
		return VFM_EENV;
	p = as_asked(g, p0);
	c = known(g, &p, NULL);
	if (!c || !c->ok)
		return vfm_fail(err, VFM_EENV, "gemm: no algorithm for %ldx%ldx%ld", (long)p.m, (long)p.n, (long)p.k);
	g->c->dev.heuristic_gemm += c->us < 0;
	return lt_check(matmul(g, s, &p, x, &c->algo), "cublasLtMatmul", err);
}

int vfm_lt_measure(struct vfm_stream *s, const struct vfm_lt_timed *what, bool tune, double *us, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);
	struct vfm_lt_entry found = {.us = -1};
	const struct vfm_lt_entry *e;
	void *scratch;
	int rc;

	if (!g)
		return VFM_EENV;
	*us = -1;
	e = vfm_lt_cache_find(&g->cache, what->key);
	rc = !e && tune ? may_time(g, s, err) : 0;
	if (rc < 0)
		return rc;
	if (rc) {
		if (cudaMalloc(&scratch, what->scratch + 1) != cudaSuccess) {
			(void)cudaGetLastError();
			return 0;
		}
		memcpy(found.key, what->key, strnlen(what->key, sizeof(found.key) - 1));
		rc = time_of(g, s, what, scratch, -1, &found.us, err);
		(void)cudaFree(scratch);
		TRY(rc);
		e = vfm_lt_cache_add(&g->cache, &found, g->c->local_size == 1);
	}
	if (e)
		*us = e->us;
	return 0;
}

/* ---- side by side ---------------------------------------------------------------------------------------------------
 */

int vfm_lt_fork(struct vfm_stream *s, struct vfm_stream *const **sides, struct vfm_err *err)
{
	struct vfm_cuda_gemm *g = gemm_of(s, err);

	if (!g)
		return VFM_EENV;
	for (int i = 0; i < SIDES; i++) {
		if (!g->side[i] && !(g->side[i] = s->dev->t->stream_new(s->dev, true, err)))
			return VFM_EENV;
		TRY(vfm_stream_follow(g->side[i], s, &g->forked, err));
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
