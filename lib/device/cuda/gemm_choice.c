/* gemm_choice.c - chooses path and algorithm of each GEMM: by timing, from the cache, or without timing. */
#include "device/cuda/gemm.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
	N_ID = 34,
	MOST_CHOICES = 32768, /* of a table: groups of experts always have new sizes */
	ALGOS = 16,           /* of a path */
	MOST_US = 1000000,    /* time for the candidates of one op */
	RUNS = 3,             /* estimated number of runs of a candidate; many stop early */
};

struct known_choice {
	int64_t id[N_ID]; /* first: the key of tsearch(3) */
	struct vfm_gemm_choice c;
};

struct choice_table {
	void *tree; /* of struct known_choice */
	size_t n;
};

struct vfm_gemm_chooser {
	const struct vfm_gemm_lib *lib;
	void *ctx;
	enum vfm_gemm_mode mode;
	bool alone;
	struct vfm_lt_cache cache;
	struct choice_table exact;   /* by op */
	struct choice_table rounded; /* by op with rounded rows: the choice without timing */
	char **warned;               /* kinds with a warning */
	size_t n_warned, cap_warned;
};

/* A path with its problem and its algorithms. */
struct algos {
	struct vfm_gemm_choice c;
	struct vfm_lt_algo algo[ALGOS];
	int n;
};

int vfm_gemm_mode_of_env(enum vfm_gemm_mode *mode, struct vfm_err *err)
{
	const char *e = getenv("VFM_CUDA_GEMM");

	*mode = VFM_GEMM_AUTO;
	if (!e || !*e || strcmp(e, "auto") == 0)
		return 0;
	*mode = strcmp(e, "epilogue") == 0 ? VFM_GEMM_EPILOGUE : VFM_GEMM_PLAIN;
	if (*mode == VFM_GEMM_PLAIN && strcmp(e, "plain") != 0)
		return vfm_fail(err, VFM_EUSAGE, "VFM_CUDA_GEMM: expected epilogue, plain or auto, got '%s'", e);
	return 0;
}

struct vfm_gemm_chooser *vfm_gemm_chooser_new(
	const struct vfm_gemm_lib *lib, void *ctx, enum vfm_gemm_mode mode, const char *path, bool alone)
{
	struct vfm_gemm_chooser *c = vfm_calloc(1, sizeof(*c));

	c->lib = lib;
	c->ctx = ctx;
	c->mode = mode;
	c->alone = alone;
	vfm_lt_cache_open(&c->cache, path);
	return c;
}

static void forget_choices(struct choice_table *t)
{
	tdestroy(t->tree, free);
	*t = (struct choice_table){0};
}

void vfm_gemm_chooser_free(struct vfm_gemm_chooser *c)
{
	if (!c)
		return;
	forget_choices(&c->exact);
	forget_choices(&c->rounded);
	vfm_lt_cache_close(&c->cache);
	for (size_t i = 0; i < c->n_warned; i++)
		free(c->warned[i]);
	free(c->warned);
	free(c);
}

/* ---- warnings --------------------------------------------------------------------------------------------- */

/* Warns unless this kind, dtypes and epilogue of the op with the reason, had a warning. */
static void warn_once(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, const char *what, const char *why)
{
	const struct vfm_gemm *g = &op->g;
	static const char *const act[] = {"", ", GELU", ", SiLU"}, *const dact[] = {"", ", dGELU", ", dSiLU"};
	char *kind = vfm_strfmt("%s x %s -> %s%s%s%s%s: %s", vfm_dtype_name(g->a.dtype), vfm_dtype_name(g->b.dtype),
		vfm_dtype_name(g->c.dtype), vfm_has(&g->bias) ? ", bias" : "", act[g->act],
		g->act && vfm_has(&g->aux) ? " with aux" : "", dact[g->dact], why);

	for (size_t i = 0; i < c->n_warned; i++)
		if (strcmp(c->warned[i], kind) == 0) {
			free(kind);
			return;
		}
	vfm_grow(&c->warned, &c->cap_warned, c->n_warned + 1, sizeof(*c->warned));
	c->warned[c->n_warned++] = kind;
	if (c->lib->warn)
		c->lib->warn("gemm of %ldx%ldx%ld, %s; %s", (long)g->c.shape[0], (long)g->c.shape[1],
			(long)g->a.shape[g->trans_a ? 0 : 1], kind, what);
}

/* ---- choices in memory -------------------------------------------------------------------------------------- */

static void identify_op(const struct vfm_gemm_op *op, int64_t id[N_ID])
{
	const struct vfm_gemm *g = &op->g;
	const char *why;
	const struct vfm_gemm_path whole = {.epi = vfm_gemm_whole_epilogue(op, &why)}, plain = {.own_epi = true};
	struct vfm_lt_problem p = vfm_lt_problem_of(op, &whole), q = vfm_lt_problem_of(op, &plain);
	const int64_t all[N_ID] = {p.a, p.b, p.c, p.bias, p.ta, p.tb, p.beta, p.tf32, p.fast8, p.scaled, p.sms, p.epi,
		p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.batch, p.stride_a, p.stride_b, p.stride_c,
		(int64_t)p.align_a | (int64_t)p.align_b << 12 | (int64_t)p.align_c << 24 | (int64_t)p.align_aux << 36 |
			(int64_t)q.align_c << 48,
		p.stride_bias, p.stride_aux, q.ldc, q.stride_c, g->act, g->dact, vfm_has(&g->aux),
		vfm_has(&g->a_rowsum), vfm_has(&g->bias) ? 1 + (int64_t)g->bias.dtype : 0, op->tune, (int64_t)op->ws};

	memcpy(id, all, sizeof(all));
}

static int compare_ids(const void *a, const void *b)
{
	return memcmp(a, b, N_ID * sizeof(int64_t));
}

/* Returns the choice of an op, or NULL. */
static const struct vfm_gemm_choice *known_choice(const struct choice_table *t, const int64_t id[N_ID])
{
	struct known_choice *const *at = tfind(id, &t->tree, compare_ids);

	return at ? &(*at)->c : NULL;
}

static void remember_choice(struct choice_table *t, const int64_t id[N_ID], const struct vfm_gemm_choice *choice)
{
	struct known_choice *k = vfm_calloc(1, sizeof(*k));

	memcpy(k->id, id, sizeof(k->id));
	k->c = *choice;
	if (t->n >= MOST_CHOICES)
		forget_choices(t);
	if (!tsearch(k, &t->tree, compare_ids))
		vfm_out_of_memory();
	t->n++;
}

/* ---- candidates ----------------------------------------------------------------------------------------------- */

/* Returns whether the mode excludes a path.  plain: no epilogue of the library, and our row sums.  epilogue: nothing of
 * our own that the library has. */
static bool excluded(enum vfm_gemm_mode mode, const struct vfm_gemm_path *all, int n, int i)
{
	if (mode == VFM_GEMM_PLAIN)
		return all[i].epi != 0;
	return mode == VFM_GEMM_EPILOGUE && i > 0 && n > 1;
}

/* Lists the algorithms of every path of the library but f32.  Returns the number of supported paths, in their order. */
static int list_paths(
	struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, bool forced, struct algos out[VFM_GEMM_PATHS])
{
	struct vfm_gemm_path path[VFM_GEMM_PATHS];
	int n = vfm_gemm_paths(op, path), got = 0;

	for (int i = 0; i < n; i++) {
		struct algos *k = &out[got];

		if (path[i].f32 || (forced && excluded(c->mode, path, n, i)))
			continue;
		*k = (struct algos){.c = {.path = path[i], .us = -1}};
		k->c.p = vfm_lt_problem_of(op, &path[i]);
		if (k->c.p.m > INT32_MAX || k->c.p.n > INT32_MAX || k->c.p.k > INT32_MAX)
			continue;
		k->n = c->lib->list(c->ctx, &k->c.p, op->ws, k->algo, ALGOS);
		got += k->n > 0;
	}
	return got;
}

/* The same for the paths of the mode, or for all if the forced kind does not exist. */
static int list_candidates(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, struct algos out[VFM_GEMM_PATHS])
{
	int n = list_paths(c, op, true, out);

	return n == 0 && c->mode != VFM_GEMM_AUTO ? list_paths(c, op, false, out) : n;
}

/* The choice without timing: the first path, but our row sums, which work for any C, with the first algorithm. */
static struct vfm_gemm_choice recommended(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op)
{
	struct algos *k = vfm_calloc(VFM_GEMM_PATHS, sizeof(*k));
	struct vfm_gemm_choice out = {
		.path = {.own_epi = true, .f32 = true, .own_rowsum = vfm_has(&op->g.a_rowsum)}, .us = -1};
	int n = list_candidates(c, op, k), first = n > 1 && k[0].c.path.epi == VFM_LT_BGRADB;
	const char *unfit;
	unsigned whole = vfm_gemm_whole_epilogue(op, &unfit);
	bool has_whole = whole == 0 || c->mode == VFM_GEMM_PLAIN;

	for (int i = 0; i < n; i++)
		has_whole |= k[i].c.path.epi == whole && !k[i].c.path.own_epi;
	if (n > 0) {
		out = k[first].c;
		out.algo = k[first].algo[0];
		out.untimed = true;
	}
	out.refused = n == 0 || !has_whole || (unfit && c->mode != VFM_GEMM_PLAIN);
	free(k);
	return out;
}

/* Returns the untimed choice for a rounded number of rows, so that it depends only on the op and a resumed run has the
 * same bits.  Computed once per rounded number.  If the algorithm does not support the exact number, returns the choice
 * for the exact number. */
static struct vfm_gemm_choice untimed_choice(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op)
{
	struct vfm_gemm_op r = *op;
	int64_t id[N_ID];
	const struct vfm_gemm_choice *known;
	struct vfm_gemm_choice x;
	bool same;

	r.tune = false;
	same = !vfm_gemm_round_rows(&r);
	identify_op(&r, id);
	known = known_choice(&c->rounded, id);
	x = known ? *known : recommended(c, &r);
	if (!known)
		remember_choice(&c->rounded, id, &x);
	if (same)
		return x;
	if (x.path.f32) /* the library refuses the rounded rows, but perhaps not these */
		return recommended(c, op);
	x.p = vfm_lt_problem_of(op, &x.path);
	return c->lib->supports(c->ctx, &x.p, op->ws, &x.algo) ? x : recommended(c, op);
}

/* Finds the fastest candidate.  Times the first algorithm of every path first, so that each path is tried before the
 * time is up.  Returns 1 with *best set, or 0 if none could be timed. */
static int fastest(
	struct vfm_gemm_chooser *c, const struct algos *k, int n, struct vfm_gemm_choice *best, struct vfm_err *err)
{
	double spent = 0;

	best->us = -1;
	for (int a = 0; a < ALGOS; a++)
		for (int i = 0; i < n && spent < MOST_US; i++) {
			struct vfm_gemm_choice one = k[i].c;
			int rc;

			if (a >= k[i].n)
				continue;
			one.algo = k[i].algo[a];
			rc = c->lib->time(c->ctx, &one, best->us, &one.us, err);
			if (rc < 0)
				return rc;
			if (rc == 0)
				continue;
			spent += one.us * RUNS;
			if (best->us < 0 || one.us < best->us)
				*best = one;
		}
	return best->us >= 0;
}

/* ---- choosing --------------------------------------------------------------------------------------------------- */

/* Takes the choice of an entry of the file, if it suits these operands. */
static bool take_entry(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, const struct vfm_lt_entry *e,
	struct vfm_gemm_choice *out)
{
	struct vfm_gemm_choice x = {.us = e->us};

	if (!vfm_gemm_path_of_code(op, e->path, &x.path) || x.path.f32)
		return false;
	x.p = vfm_lt_problem_of(op, &x.path);
	memcpy(x.algo.opaque, e->algo, sizeof(x.algo.opaque));
	if (!c->lib->supports(c->ctx, &x.p, op->ws, &x.algo))
		return false;
	*out = x;
	return true;
}

/* The key of the op in this mode. */
static void key_of(const struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, char key[VFM_LT_KEY])
{
	static const char *const mode[] = {"", " epilogue", " plain"};
	size_t n;

	vfm_gemm_key(op, key);
	n = strlen(key);
	snprintf(key + n, VFM_LT_KEY - n, "%s", mode[c->mode]);
}

/* Finds the fastest of all candidates.  1: *best is set; 0: no timing, and *why says why unless the user forbids it. */
static int time_candidates(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, struct vfm_gemm_choice *best,
	const char **why, struct vfm_err *err)
{
	struct algos *k;
	int rc = c->lib->time_begin(c->ctx, op, why, err);

	if (rc <= 0)
		return rc;
	k = vfm_calloc(VFM_GEMM_PATHS, sizeof(*k));
	rc = fastest(c, k, list_candidates(c, op, k), best, err);
	c->lib->time_end(c->ctx);
	free(k);
	*why = "the library refused every algorithm at the call";
	return rc;
}

/* Times the candidates and writes the result to the file; returns as time_candidates. */
static int choose_by_time(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, const char *key,
	struct vfm_gemm_choice *out, const char **why, struct vfm_err *err)
{
	struct vfm_lt_entry found = {.us = -1};
	const struct vfm_lt_entry *e;
	struct vfm_gemm_choice best;
	int rc = time_candidates(c, op, &best, why, err);

	if (rc <= 0)
		return rc;
	memcpy(found.key, key, strlen(key) + 1);
	memcpy(found.algo, best.algo.opaque, sizeof(found.algo));
	found.path = vfm_gemm_path_code(&best.path);
	found.ws = (int64_t)best.algo.ws;
	found.us = best.us;
	e = vfm_lt_cache_add(&c->cache, &found, c->alone);
	*why = "the file of algorithms cannot be written, so other ranks would not know the choice";
	if (!e)
		return 0;
	*why = "the algorithm of another size of this key does not support this one";
	return take_entry(c, op, e, out);
}

static void warn_of_refusal(struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, const struct vfm_gemm_choice *x)
{
	const char *unfit;

	vfm_gemm_whole_epilogue(op, &unfit);
	if (!x->path.f32)
		warn_once(c, op, "our own kernels compute the epilogue",
			unfit ? unfit : "the library refuses the epilogue");
	else if (op->batch.count == 1)
		warn_once(c, op, "our own kernels compute it, which is slow", "the library refuses the product");
}

static int choose_fresh(
	struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, struct vfm_gemm_choice *out, struct vfm_err *err)
{
	struct vfm_gemm_choice untimed = untimed_choice(c, op);
	const struct vfm_lt_entry *e;
	const char *why = NULL;
	char key[VFM_LT_KEY];
	int timed = 0;

	*out = untimed;
	if (op->tune && !untimed.path.f32) {
		key_of(c, op, key);
		e = vfm_lt_cache_find(&c->cache, key);
		timed = e ? take_entry(c, op, e, out) : choose_by_time(c, op, key, out, &why, err);
		if (e)
			why = "the algorithm of another size of this key does not support this one";
	}
	if (timed < 0)
		return timed;
	out->refused = untimed.refused;
	if (!timed && why)
		warn_once(c, op, "the library's heuristic chooses the algorithm", why);
	if (out->refused)
		warn_of_refusal(c, op, out);
	return !out->path.f32;
}

int vfm_gemm_choose(
	struct vfm_gemm_chooser *c, const struct vfm_gemm_op *op, struct vfm_gemm_choice *out, struct vfm_err *err)
{
	int64_t id[N_ID];
	const struct vfm_gemm_choice *known;
	int rc;

	identify_op(op, id);
	known = known_choice(&c->exact, id);
	if (known) {
		*out = *known;
		return !out->path.f32;
	}
	rc = choose_fresh(c, op, out, err);
	if (rc >= 0)
		remember_choice(&c->exact, id, out);
	return rc;
}
