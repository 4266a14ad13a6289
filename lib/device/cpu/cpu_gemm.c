/* cpu_gemm.c - GEMM: blocking and threads around the kernels of cpu_gemm.inc.h.
 *
 * K is divided into slices, and slices into chunks whose panel of B fits the L1 cache.  The sums of a block of C over a
 * slice stay in the L2 cache; the epilogue of a tile runs during the product of the next tile or right after it.
 * Slices are added to C if C is plain f32, else to a plain f32 array.
 *
 * Sums have three levels, each from zero: a run of K in registers (vfm_gemm_kern.tile), the runs of a slice, the
 * slices.  In f32 the error of n elements is at most (128 + SLICE / 128 + n / SLICE) 2^-24 of the sum of |a b|.
 *
 * Products of many rows pack all of B first, because several blocks of rows read it.  With one block of rows, or fewer
 * rows than columns, A is packed first; each thread then packs a few panels of B into its caches and uses them once.
 * Products of few rows do not pack B as a whole (cpu_few.inc.h), except with AMX tiles.  For more rows, held operands
 * (device/ops/tensor.h) are packed once, whole.
 *
 * The order of every sum depends only on K; with AMX in f32 also on vfm_gemm.few and whether N is less than TILES_MIN.
 * So results depend neither on the number of threads nor on the other rows.
 */
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_impl.h"

#include <string.h>

#include "base/par.h"

enum {
	TILE_MAX = 32 * 32,   /* the largest mr nr */
	NC = 768,             /* columns of a block: a multiple of every nr */
	B_BYTES = 12 << 20,   /* bytes of B packed at a time */
	L1_BYTES = 24 << 10,  /* of panels of B, beside one of A */
	L2_BYTES = 400 << 10, /* half of the room in a small L2 cache */
	SLICE = 4096,         /* most elements of K of a slice */
	FEW_ROWS = 16,        /* most rows of a product that does not pack all of B */
	TILES_MIN = 32,       /* least columns and elements of K for AMX tiles in f32 */
};

struct gemm {
	const struct vfm_gemm_kern *kern;
	struct vfm_mat a, b;
	struct vfm_epi epi; /* of this slice */
	int64_t m, n, k;
	int64_t k0, k1;   /* this slice; bounds are multiples of ku kc */
	int64_t p0, p1;   /* panels of B of this pass */
	int64_t kc;       /* units a chunk */
	int64_t slice;    /* elements a slice: whole chunks */
	float *packed;    /* B of this pass: [panel of nr][units][nr] */
	float *a_packed;  /* one block: A, [chunk][panel of mr][a_stride] */
	bool held;        /* packed is all of B, and stays */
	int64_t b_groups; /* groups of panels that are packed together */
	float *sums;      /* NULL or [2][m in whole panels]: row sums of A of this slice, and of a chunk */
	float *total;     /* [m][n] sums of the slices before, where C cannot hold them */
	int64_t mb, nb;   /* blocks of C */
	int64_t m_panels, n_panels;
	bool in_c;     /* whole tiles are summed in C */
	bool add;      /* the epilogue of this slice completes the sums: it adds total */
	int64_t group; /* panels of B that a thread computes at a time, where it does not compute blocks */
};

/* Returns the packed units of k elements. */
static int64_t count_units(const struct gemm *g, int64_t k)
{
	return cpu_ceil_div(k, g->kern->ku);
}

/* Returns the floats of a packed panel of B of k elements. */
static int64_t count_b(const struct gemm *g, int64_t k)
{
	return count_units(g, k) * g->kern->words * g->kern->nr;
}

enum { B_GROUP = 8 };

/* Packs piece i: a chunk of a group of panels. */
static void pack_b_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct gemm *g = ctx;
	int nr = g->kern->nr;
	int64_t stride = count_b(g, g->k1 - g->k0), step = g->kc * g->kern->ku;

	for (int64_t i = i0; i < i1; i++) {
		int64_t j = g->p0 + i % g->b_groups * B_GROUP, c = i / g->b_groups, k = g->k0 + c * step;
		int64_t n = cpu_min(cpu_min(B_GROUP, g->p1 - j) * nr, g->n - j * nr);

		g->kern->pack(g->packed + (j - g->p0) * stride + c * count_b(g, step), false, stride, &g->b, j * nr, n,
			k, cpu_min(k + step, g->k1), NULL);
	}
}

/* Packs B of this pass. */
static void pack_pass(struct gemm *g)
{
	g->b_groups = cpu_ceil_div(g->p1 - g->p0, B_GROUP);
	vfm_par_for(g->b_groups * cpu_ceil_div(g->k1 - g->k0, g->kc * g->kern->ku), 1, pack_b_range, g);
}

/* Returns panels [*p0, *p1) of block i of `blocks`, divided as evenly as whole panels allow. */
static void share(int64_t panels, int64_t blocks, int64_t i, int64_t *p0, int64_t *p1)
{
	*p0 = panels * i / blocks;
	*p1 = panels * (i + 1) / blocks;
}

/* Returns the floats from one packed panel of A to the next: packing writes past the end of a panel. */
static int64_t get_a_stride(const struct gemm *g)
{
	return g->kc * g->kern->words * g->kern->mr + 16;
}

/* Returns the packed panel j of B from element k on; *stride: the floats to the next panel. */
static const float *find_panel(const struct gemm *g, int64_t j, int64_t k, int64_t *stride)
{
	*stride = count_b(g, g->held ? g->k : g->k1 - g->k0);
	return g->packed + (j - (g->held ? 0 : g->p0)) * *stride + count_b(g, g->held ? k : k - g->k0);
}

/* Adds the slices before to a tile. */
static void add_total(const struct gemm *g, float *tile, int64_t m0, int64_t n0, int64_t mr, int64_t nr)
{
	for (int64_t i = 0; i < mr; i++) {
		const float *src = g->total + (m0 + i) * g->n + n0;

		for (int64_t j = 0; j < nr; j++)
			tile[i * g->kern->nr + j] += src[j];
	}
}

/* Prefetches the part of the result and of aux that the epilogue of a tile accesses. */
static void prefetch_result(const struct vfm_epi *e, int64_t m, int64_t n, int64_t mr, int64_t nr)
{
	int64_t esize = e->c_bf ? 2 : 4;

	for (int64_t i = m; i < m + mr; i++)
		for (int64_t b = n * esize; b < (n + nr) * esize; b += 64) {
			__builtin_prefetch((char *)e->c + i * e->ldc * esize + b, 1, 3);
			if (e->aux)
				__builtin_prefetch((char *)e->aux + i * e->ld_aux * esize + b, 0, 3);
		}
}

/* Multiplies panels for the tile of panels i and j; first, last: the chunk is that of this slice.  p: the operands.
 * scratch: [mr][nr], which keeps the sums between chunks, and the last ones until the tail of this tile has run. */
static void add_chunk(
	const struct gemm *g, int64_t i, int64_t j, struct vfm_panel_product *p, float *scratch, bool first, bool last)
{
	const struct vfm_gemm_kern *kern = g->kern;
	int64_t mr = kern->mr, nr = kern->nr, tm = cpu_min(mr, g->m - i * mr), tn = cpu_min(nr, g->n - j * nr);
	bool in_c = g->in_c && tm == mr && tn == nr;

	p->c = in_c ? (float *)g->epi.c + i * mr * g->epi.ldc + j * nr : scratch;
	p->ldc = in_c ? g->epi.ldc : nr;
	p->first = first && !(in_c && g->epi.accumulate);
	kern->tile(p);
	vfm_tail_run(p->tail, mr);
	if (in_c || !last)
		return;
	if (g->add)
		add_total(g, scratch, i * mr, j * nr, tm, tn);
	*p->tail = (struct vfm_tail){&g->epi, kern->epilogue, scratch, i * mr, j * nr, tm, tn, (int)nr};
}

/* The tiles of a block, of panels [i0, i1) and [j0, j1).  Their order is column by column, or by rows if all of B stays
 * in the L1 cache, so that C is read and written in the order of memory. */
struct tile_walk {
	int64_t i0, i1, j0, j1;
	bool by_rows;
};

/* Sets i and j to the next tile; past the last one, *j is j1 or *i is i1. */
static void step_tile(const struct tile_walk *w, int64_t *i, int64_t *j)
{
	if (w->by_rows && ++*j == w->j1) {
		*j = w->j0;
		++*i;
	} else if (!w->by_rows && ++*i == w->i1) {
		*i = w->i0;
		++*j;
	}
}

/* Prefetches C of the tile after that of panels i and j, if this chunk stores it: the tile before hides the latency.
 * last: the chunk is that of this slice. */
static void prefetch_next(const struct gemm *g, const struct tile_walk *w, int64_t i, int64_t j, bool last)
{
	int64_t mr = g->kern->mr, nr = g->kern->nr;

	step_tile(w, &i, &j);
	if ((g->in_c || last) && i < w->i1 && j < w->j1)
		prefetch_result(&g->epi, i * mr, j * nr, cpu_min(mr, g->m - i * mr), cpu_min(nr, g->n - j * nr));
}

/* Prefetches part i of n of the next chunk of A, from k on, during the product of this one. */
static void prefetch_a(const struct gemm *g, int64_t i0, int64_t i1, int64_t k, int64_t i, int64_t n)
{
	int64_t esize = g->a.bf ? 2 : 4, ks = cpu_min(g->kc * g->kern->ku, g->k1 - k);
	int64_t m0 = i0 * g->kern->mr, ms = cpu_min(i1 * g->kern->mr, g->m) - m0;
	int64_t rows = g->a.kmajor ? ks : ms, bytes = (g->a.kmajor ? ms : ks) * esize;
	const char *p = (const char *)g->a.p + (g->a.kmajor ? k * g->a.ld + m0 : m0 * g->a.ld + k) * esize;

	if (ks <= 0)
		return;
	for (int64_t r = rows * i / n; r < rows * (i + 1) / n; r++)
		for (int64_t b = 0; b < bytes; b += 64)
			__builtin_prefetch(p + r * g->a.ld * esize + b, 0, 2);
}

/* Packs elements [k, ke) of panels [i0, i1) of A; `sums` adds their row sums to those of the slice. */
static void pack_chunk_a(const struct gemm *g, float *dst, int64_t i0, int64_t i1, int64_t k, int64_t ke, bool sums)
{
	int64_t mr = g->kern->mr, rows = (i1 - i0) * mr;
	float *slice = sums ? g->sums + i0 * mr : NULL, *chunk = sums ? slice + g->m_panels * mr : NULL;

	if (sums)
		memset(chunk, 0, (size_t)rows * sizeof(*chunk));
	g->kern->pack(dst, true, get_a_stride(g), &g->a, i0 * mr, cpu_min(rows, g->m - i0 * mr), k, ke, chunk);
	for (int64_t r = 0; sums && r < rows; r++)
		slice[r] += chunk[r];
}

static void block(const struct gemm *g, int64_t bi, int64_t bj, float *scratch)
{
	const struct vfm_gemm_kern *kern = g->kern;
	int64_t tile = (int64_t)kern->mr * kern->nr, step = g->kc * kern->ku, a_stride = get_a_stride(g), b_stride;
	float *panels = scratch + (int64_t)kern->mc * NC;
	bool whole = g->k1 - g->k0 <= step; /* one chunk completes a tile */
	struct vfm_tail tail = {0};
	struct tile_walk w;

	share(g->m_panels, g->mb, bi, &w.i0, &w.i1);
	share(g->p1 - g->p0, g->nb, bj, &w.j0, &w.j1);
	w.j0 += g->p0, w.j1 += g->p0;
	w.by_rows = whole && (w.j1 - w.j0) * count_b(g, g->k1 - g->k0) * 4 <= L1_BYTES;
	for (int64_t k = g->k0; k < g->k1; k += step) {
		int64_t ke = cpu_min(k + step, g->k1), n = (w.i1 - w.i0) * (w.j1 - w.j0), i = w.i0, j = w.j0;
		struct vfm_panel_product p = {.units = count_units(g, ke - k), .tail = &tail};

		pack_chunk_a(g, panels, w.i0, w.i1, k, ke, g->sums && w.j0 == 0);
		for (int64_t nth = 0; nth < n; nth++, step_tile(&w, &i, &j)) {
			p.a = panels + (i - w.i0) * a_stride;
			p.b = find_panel(g, j, k, &b_stride);
			prefetch_next(g, &w, i, j, ke == g->k1);
			add_chunk(g, i, j, &p, scratch + (whole ? nth % 2 : nth) * tile, k == g->k0, ke == g->k1);
			prefetch_a(g, w.i0, w.i1, ke, nth, n);
		}
	}
	vfm_tail_run(&tail, kern->mr);
}

static void block_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct gemm *g = ctx;
	int64_t mc = g->kern->mc;
	float *scratch = vfm_cpu_scratch((size_t)(mc * NC + mc * (g->kc * g->kern->words + 16) + 64) * sizeof(float));

	if (g->kern->begin)
		g->kern->begin();
	for (int64_t i = i0; i < i1; i++)
		block(g, i % g->mb, i / g->mb, scratch);
	if (g->kern->end)
		g->kern->end();
}

/* Chooses the chunks of K, and slices of nearly as many of them.  Tiles are reloaded for each chunk, so the chunks of
 * AMX are of nearly equal size. */
static void choose_chunk(struct gemm *g)
{
	int64_t units = count_units(g, g->k), kc = g->kern->kc, chunks, most;

	g->kc = units <= g->kern->kc_whole ? units : kc;
	if (g->kern->words > 1 && units > g->kern->kc_whole)
		g->kc = cpu_ceil_div(units, cpu_ceil_div(units, kc));
	chunks = cpu_ceil_div(units, g->kc);
	most = cpu_max(1, SLICE / (g->kc * g->kern->ku));
	g->slice = cpu_ceil_div(chunks, cpu_ceil_div(chunks, most)) * g->kc * g->kern->ku;
}

/* Chooses blocks as large as the cache holds, but enough of them for all threads.  A is packed nb times. */
static void choose_blocks(struct gemm *g)
{
	int64_t threads = vfm_par_threads(), want = threads > 1 ? threads * 4 : 1, n_panels = g->p1 - g->p0;

	g->mb = cpu_ceil_div(g->m_panels, g->kern->mc / g->kern->mr);
	g->nb = g->k <= g->kc * g->kern->ku ? 1 : cpu_ceil_div(n_panels, NC / g->kern->nr);
	while (g->mb * g->nb < want && g->m_panels / g->mb > 4)
		g->mb++;
	while (g->mb * g->nb < want && n_panels / g->nb > 4)
		g->nb++;
	while (g->mb * g->nb % threads && g->mb * g->nb < 8 * threads * 4) {
		if (g->m_panels / g->mb > 4)
			g->mb++;
		else if (n_panels / g->nb > 4)
			g->nb++;
		else
			break;
	}
}

/* ---- rows of one block -------------------------------------------------------------------- */

static void pack_a_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct gemm *g = ctx;
	int64_t step = g->kc * g->kern->ku;

	for (int64_t k = g->k0; k < g->k1; k += step)
		pack_chunk_a(g, g->a_packed + ((k - g->k0) / step * g->m_panels + i0) * get_a_stride(g), i0, i1, k,
			cpu_min(k + step, g->k1), g->sums);
}

/* Computes the columns of panels [j0, j1) of B. */
static void multiply_panels(const struct gemm *g, int64_t j0, int64_t j1, float *scratch)
{
	const struct vfm_gemm_kern *kern = g->kern;
	int64_t nr = kern->nr, tile = kern->mr * nr, step = g->kc * kern->ku, a_stride = get_a_stride(g);
	float *panels = scratch + (g->group * g->m_panels + 1) * tile;
	bool whole = g->k1 - g->k0 <= step;
	struct vfm_tail tail = {0};
	struct tile_walk w = {0, g->m_panels, j0, j1, whole && (j1 - j0) * count_b(g, g->k1 - g->k0) * 4 <= L1_BYTES};

	for (int64_t k = g->k0; k < g->k1; k += step) {
		int64_t ke = cpu_min(k + step, g->k1), b_stride = count_b(g, step), i = 0, j = j0;
		const float *a = g->a_packed + (k - g->k0) / step * g->m_panels * a_stride, *b = panels;
		struct vfm_panel_product p = {.units = count_units(g, ke - k), .tail = &tail};

		if (g->held)
			b = find_panel(g, j0, k, &b_stride);
		else
			kern->pack(panels, false, b_stride, &g->b, j0 * nr, cpu_min((j1 - j0) * nr, g->n - j0 * nr), k,
				ke, NULL);
		for (int64_t nth = 0; nth < g->m_panels * (j1 - j0); nth++, step_tile(&w, &i, &j)) {
			p.a = a + i * a_stride;
			p.b = b + (j - j0) * b_stride;
			prefetch_next(g, &w, i, j, ke == g->k1);
			add_chunk(g, i, j, &p, scratch + (whole ? nth % 2 : nth) * tile, k == g->k0, ke == g->k1);
		}
	}
	vfm_tail_run(&tail, kern->mr);
}

static void panels_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct gemm *g = ctx;
	int64_t tiles = (g->group * g->m_panels + 1) * g->kern->mr * g->kern->nr;
	int64_t panels = g->group * count_b(g, g->kc * g->kern->ku);
	float *scratch = vfm_cpu_scratch((size_t)(tiles + panels + 64) * sizeof(float));

	if (g->kern->begin)
		g->kern->begin();
	for (int64_t i = i0; i < i1; i++)
		multiply_panels(g, i * g->group, cpu_min((i + 1) * g->group, g->n_panels), scratch);
	if (g->kern->end)
		g->kern->end();
}

/* Returns the panels of B that a thread computes at a time: the tiles of all rows fit the L2 cache. */
static int64_t choose_group(const struct gemm *g)
{
	int64_t tiles = g->m_panels * g->kern->mr * g->kern->nr * 4 + 1;
	int64_t group = cpu_min(g->n_panels / (4 * vfm_par_threads()), L2_BYTES / tiles);

	return cpu_max(1, cpu_min(group, B_GROUP));
}

/* Returns whether A is packed first: the rows of one block, or the smaller operand if there are columns for all threads
 * and a chunk of A stays in the L2 cache with the tiles or serves many columns. */
static bool suits_one_block(const struct gemm *g)
{
	const struct vfm_gemm_kern *kern = g->kern;
	int64_t group = choose_group(g), chunk = g->m * (g->kc * kern->words + group * kern->nr) * 4;

	if (g->m <= kern->mc || !g->n)
		return true;
	return g->m <= g->n && g->n_panels >= 4 * vfm_par_threads() && g->m * kern->nr * 4 * 4 <= L2_BYTES &&
		(chunk <= L2_BYTES || group * kern->nr >= 128);
}

static int run_one_block(struct vfm_stream *s, struct gemm *g, struct vfm_err *err)
{
	int64_t chunks = cpu_ceil_div(g->k1 - g->k0, g->kc * g->kern->ku);

	g->group = choose_group(g);
	g->a_packed =
		vfm_cpu_ws(s, VFM_WS_PACK, (size_t)(chunks * g->m_panels * get_a_stride(g) + 16) * sizeof(float), err);
	if (!g->a_packed)
		return VFM_EENV;
	vfm_par_for(g->m_panels, g->k1 - g->k0 > SLICE / 2 ? 1 : 8, pack_a_range, g);
	vfm_par_for(cpu_ceil_div(g->n_panels, g->group), 1, panels_range, g);
	return 0;
}

/* ---- few rows ----------------------------------------------------------------------------- */

struct few_job {
	const struct gemm *g;
	const struct vfm_cpu_kern *kern;
	struct vfm_few few;
	void *x; /* a copy of A, [m][k] in f32 or in bf16 with rows of whole pairs, where A has another form */
};

enum { FEW_GROUP = 32 }; /* a thread reads long pieces of the rows of B */

static void few_range(int64_t i0, int64_t i1, void *ctx)
{
	const struct few_job *j = ctx;
	const struct gemm *g = j->g;
	int64_t nr = g->kern->nr, rows = g->m, width = g->group * nr;
	float *tiles = vfm_cpu_scratch((size_t)(3 * width * rows + 16) * sizeof(float));

	for (int64_t i = i0; i < i1; i++) {
		int64_t n0 = i * width, n1 = cpu_min(n0 + width, g->n);

		j->kern->few_rows(&j->few, n0, n1, tiles);
		for (int64_t n = n0; n < n1; n += nr)
			g->kern->epilogue(&g->epi, tiles + (n - n0) * rows, 0, n, rows, cpu_min(nr, n1 - n));
	}
}

static void copy_rows_range(int64_t k0, int64_t k1, void *ctx)
{
	const struct few_job *j = ctx;
	const struct gemm *g = j->g;
	const uint16_t *half = g->a.p;
	const float *whole = g->a.p;
	float *x = j->x;
	uint16_t *pairs = j->x;

	for (int64_t m = 0; m < g->m; m++)
		for (int64_t k = k0; k < k1; k++) {
			int64_t at = g->a.kmajor ? k * g->a.ld + m : m * g->a.ld + k;

			if (j->few.pairs)
				pairs[m * 2 * j->few.units + k] = half[at];
			else
				x[m * g->k + k] = g->a.bf ? vfm_bf16_to_f32(half[at]) : whole[at];
		}
}

/* Returns whether the kernel of few rows can read A where it is. */
static bool is_few_operand(const struct gemm *g, bool pairs)
{
	return !g->a.kmajor &&
		(pairs ? g->k % 2 == 0 && g->a.ld % 2 == 0 && (uintptr_t)g->a.p % sizeof(float) == 0 : !g->a.bf);
}

static int run_few_rows(struct vfm_stream *s, struct gemm *g, struct vfm_err *err)
{
	bool pairs = g->kern->ku == 2;
	struct few_job j = {.g = g, .kern = vfm_cpu_of(s)->kern};
	int64_t panels = cpu_ceil_div(g->n, g->kern->nr), units = count_units(g, g->k);
	size_t bytes = (size_t)(g->m * units + 1) * sizeof(float);

	j.few = (struct vfm_few){.x = g->a.p,
		.ldx = g->a.ld / g->kern->ku,
		.rows = g->m,
		.k = g->k,
		.units = units,
		.slice = g->slice / g->kern->ku,
		.pairs = pairs,
		.b = g->b};
	if (!is_few_operand(g, pairs)) {
		j.x = vfm_cpu_ws(s, VFM_WS_PACK, bytes, err);
		if (!j.x)
			return VFM_EENV;
		if (g->k % 2)
			memset(j.x, 0, bytes);
		vfm_par_for(g->k, 4096, copy_rows_range, &j);
		j.few.x = j.x;
		j.few.ldx = units;
	}
	g->group = cpu_min(FEW_GROUP, cpu_ceil_div(panels, vfm_par_threads()));
	vfm_par_for(cpu_ceil_div(panels, g->group), 1, few_range, &j);
	return 0;
}

/* Returns whether few_rows sums in the order of the other kernels: one unit at a time, and not from C. */
static bool suits_few_rows(const struct gemm *g, const struct vfm_gemm *a)
{
	return g->m <= FEW_ROWS && g->kern->words == 1 && !g->epi.accumulate && !vfm_has(&a->a_rowsum);
}

/* ---- many rows ---------------------------------------------------------------------------- */

static int multiply_blocks(struct vfm_stream *s, struct gemm *g, struct vfm_err *err)
{
	int64_t panel = count_b(g, g->k1 - g->k0) * (int64_t)sizeof(float);
	int64_t passes = g->held ? 1 : cpu_ceil_div(g->n_panels, cpu_max(1, B_BYTES / panel));

	if (!g->held)
		g->packed = vfm_cpu_ws(s, VFM_WS_PACK, (size_t)(cpu_ceil_div(g->n_panels, passes) * panel), err);
	if (!g->packed)
		return VFM_EENV;
	for (int64_t i = 0; i < passes; i++) {
		share(g->n_panels, passes, i, &g->p0, &g->p1);
		choose_blocks(g);
		if (!g->held)
			pack_pass(g);
		vfm_par_for(g->mb * g->nb, 1, block_range, g);
	}
	return 0;
}

/* Packs a held B, unless a copy of this version exists.  Without memory for it each call packs B. */
static void get_held(struct vfm_stream *s, struct gemm *g, int64_t version)
{
	struct vfm_held_key key = {.b = g->b, .n = g->n, .k = g->k, .kc = g->kc};
	size_t bytes = (size_t)(g->n_panels * count_b(g, g->k)) * sizeof(float);
	bool valid;

	g->packed = vfm_cpu_held(vfm_cpu_of(s), &key, version, bytes, &valid);
	g->held = g->packed != NULL;
	if (g->held && !valid) {
		g->k0 = g->p0 = 0, g->k1 = g->k, g->p1 = g->n_panels;
		pack_pass(g);
	}
}

struct vfm_cpu_copies vfm_cpu_copies_of(const struct vfm_dev *d, enum vfm_dtype dtype)
{
	const struct vfm_cpu *c = (const struct vfm_cpu *)d;
	const struct vfm_gemm_kern *k;

	if (strcmp(d->t->name, "cpu") != 0)
		return (struct vfm_cpu_copies){.columns = 1, .depth = 1};
	k = dtype == VFM_BF16 ? &c->gemm_bf16 : &c->gemm_f32;
	return (struct vfm_cpu_copies){.few = FEW_ROWS,
		.rows = k->held_rows,
		.columns = k->nr,
		.depth = k->ku,
		.bytes = k->words * (int)sizeof(float) / k->ku};
}

/* Returns whether each tile is one sum from zero, so that kern->tile adds it to C with the bits of the epilogue. */
static bool is_one_run(const struct gemm *g)
{
	return g->kern->words == 1 && count_units(g, g->k) <= VFM_GEMM_RUN;
}

/* Sets the epilogue of a slice.  last: the epilogue of the result; plain: C can hold sums. */
static void choose_epilogue(struct gemm *g, const struct vfm_epi *last, bool plain)
{
	bool more = g->k0 > 0;

	g->epi = *last;
	g->in_c = plain && !more && (!last->accumulate || is_one_run(g));
	g->add = !plain && more && g->k1 == g->k;
	if (plain)
		g->epi.accumulate |= more;
	else if (g->k1 < g->k)
		g->epi = (struct vfm_epi){.c = g->total, .ldc = g->n, .accumulate = more};
}

static int run_slices(struct vfm_stream *s, struct gemm *g, float *rowsum, struct vfm_err *err)
{
	const struct vfm_epi last = g->epi;
	bool plain = !last.c_bf && !last.act && !last.dact && !last.bias;
	int64_t rows = g->m_panels * g->kern->mr;

	if (g->k > g->slice && !plain) {
		g->total = vfm_cpu_ws(s, VFM_WS_TEMP, (size_t)(g->m * g->n + 1) * sizeof(float), err);
		if (!g->total)
			return VFM_EENV;
	}
	for (g->k0 = 0; g->k0 < g->k; g->k0 = g->k1) {
		g->k1 = cpu_min(g->k0 + g->slice, g->k);
		choose_epilogue(g, &last, plain);
		if (rowsum)
			memset(g->sums, 0, (size_t)rows * sizeof(float));
		if (suits_one_block(g)) /* without columns the row sums of A remain */
			TRY(run_one_block(s, g, err));
		else
			TRY(multiply_blocks(s, g, err));
		for (int64_t i = 0; rowsum && i < g->m; i++)
			rowsum[i] += g->sums[i];
	}
	return 0;
}

static int run_gemm(struct vfm_stream *s, struct gemm *g, const struct vfm_gemm *a, struct vfm_err *err)
{
	float *rowsum = vfm_has(&a->a_rowsum) ? a->a_rowsum.data : NULL;

	g->m_panels = cpu_ceil_div(g->m, g->kern->mr);
	g->n_panels = cpu_ceil_div(g->n, g->kern->nr);
	if (rowsum) {
		g->sums = vfm_cpu_ws(s, VFM_WS_PART, (size_t)(2 * g->m_panels * g->kern->mr) * sizeof(float), err);
		if (!g->sums)
			return VFM_EENV;
	}
	if (a->b.version && g->n && g->m > FEW_ROWS && g->m <= g->kern->held_rows)
		get_held(s, g, a->b.version);
	return run_slices(s, g, rowsum, err);
}

/* K = 0: the sums are zero, but the epilogue applies */
static void empty_sums(int64_t i0, int64_t i1, void *ctx)
{
	const struct gemm *g = ctx;
	float tile[TILE_MAX] = {0};
	int64_t mr = g->kern->mr, nr = g->kern->nr;

	for (int64_t i = i0 * mr; i < i1 * mr && i < g->m; i += mr)
		for (int64_t j = 0; j < g->n; j += nr)
			g->kern->epilogue(&g->epi, tile, i, j, cpu_min(mr, g->m - i), cpu_min(nr, g->n - j));
}

/* Sets the bias, which the kernels add in f32. */
static int get_bias(struct vfm_stream *s, struct vfm_epi *epi, const struct vfm_tensor *bias, struct vfm_err *err)
{
	size_t n = vfm_has(bias) ? (size_t)bias->shape[0] : 0;
	float *x;

	if (!vfm_has(bias) || bias->dtype == VFM_F32) {
		epi->bias = vfm_has(bias) ? bias->data : NULL;
		return 0;
	}
	epi->bias = x = vfm_cpu_ws(s, VFM_WS_BIAS, n * sizeof(float) + 1, err);
	if (!x)
		return VFM_EENV;
	vfm_dtype_convert(VFM_F32, x, bias->dtype, bias->data, n);
	return 0;
}

/* Few columns or a short K do not pay for splitting the elements of A, nor few rows for those of B.  The number of rows
 * has no part in it, so that a row has the same bits in any product. */
static const struct vfm_gemm_kern *choose_f32(const struct vfm_cpu *c, const struct vfm_gemm *a)
{
	int64_t n = a->c.shape[1], k = a->a.shape[a->trans_a ? 0 : 1];

	return a->few || n < TILES_MIN || k < TILES_MIN ? &c->kern->gemm_f32 : &c->gemm_f32;
}

int vfm_cpu_gemm(struct vfm_stream *s, const struct vfm_gemm *a, struct vfm_err *err)
{
	struct vfm_cpu *c = vfm_cpu_of(s);
	bool bf = a->a.dtype == VFM_BF16;
	struct gemm g = {
		.kern = bf ? &c->gemm_bf16 : choose_f32(c, a),
		.a = {a->a.data, a->a.stride[0], bf, a->trans_a},
		.b = {a->b.data, a->b.stride[0], bf, !a->trans_b},
		.epi = {.c = a->c.data,
			.ldc = a->c.stride[0],
			.c_bf = a->c.dtype == VFM_BF16,
			.accumulate = a->accumulate,
			.act = a->act,
			.dact = a->dact,
			.aux = vfm_has(&a->aux) ? a->aux.data : NULL,
			.ld_aux = vfm_has(&a->aux) ? a->aux.stride[0] : 0},
		.m = a->c.shape[0],
		.n = a->c.shape[1],
		.k = a->a.shape[a->trans_a ? 0 : 1],
	};

	if (vfm_has(&a->scale_a))
		return vfm_cpu_gemm8(s, a, err);
	TRY(get_bias(s, &g.epi, &a->bias, err));
	if (!g.m || (!g.n && !vfm_has(&a->a_rowsum)))
		return 0;
	if (!g.k) {
		if (!a->accumulate || g.epi.bias)
			vfm_par_for(cpu_ceil_div(g.m, g.kern->mr), 1, empty_sums, &g);
		return 0;
	}
	choose_chunk(&g);
	if (suits_few_rows(&g, a))
		return run_few_rows(s, &g, err);
	return run_gemm(s, &g, a, err);
}
