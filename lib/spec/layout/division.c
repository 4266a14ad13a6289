/* division.c - permutations that give each cp rank whole frames or columns. */
#include "spec/layout/division.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/suballoc.h"
#include "spec/layout/tokens.h"

/* The rank and row of each row of the pack. */
struct map {
	int64_t total;
	int32_t *home, *home_row; /* [total] rank and row in the division of tokens.h */
	int32_t *to, *to_row;     /* [total] in the new one */
};

static void place_map(struct map *m, struct vfm_suballoc *a)
{
	m->home = vfm_suballoc(a, m->total, sizeof(int32_t));
	m->home_row = vfm_suballoc(a, m->total, sizeof(int32_t));
	m->to = vfm_suballoc(a, m->total, sizeof(int32_t));
	m->to_row = vfm_suballoc(a, m->total, sizeof(int32_t));
}

static void place_division(struct vfm_division *d, struct vfm_suballoc *a)
{
	d->gather = vfm_suballoc(a, d->home, sizeof(int32_t));
	d->gather_inv = vfm_suballoc(a, d->home, sizeof(int32_t));
	d->place = vfm_suballoc(a, d->rows, sizeof(int32_t));
	d->place_inv = vfm_suballoc(a, d->rows, sizeof(int32_t));
	d->pack_row = vfm_suballoc(a, d->rows, sizeof(int32_t));
}

static void map_home(struct map *m, int n, const int32_t *cu, int cp)
{
	int64_t *at = vfm_calloc((size_t)cp, sizeof(*at));

	for (int s = 0; s < n; s++) {
		for (int r = 0; r < cp; r++) {
			int64_t a, b;

			vfm_tokens_chunk(cu[s + 1] - cu[s], s, cp, r, &a, &b);
			for (int64_t i = cu[s] + a; i < cu[s] + b; i++) {
				m->home[i] = r;
				m->home_row[i] = (int32_t)at[r]++;
			}
		}
	}
	free(at);
}

/* The units of a sample of t frames of `area` positions: number, length, and stride between their tokens. */
static void units_of(enum vfm_division_kind kind, const int32_t *grid, int64_t *units, int64_t *len, int64_t *next_unit,
	int64_t *next)
{
	int64_t t = grid[0], area = (int64_t)grid[1] * grid[2];
	bool frames = kind == VFM_DIV_FRAMES;

	*units = frames ? t : area;
	*len = frames ? area : t;
	*next_unit = frames ? area : 1;
	*next = frames ? 1 : area;
}

static void map_new(struct map *m, struct vfm_division *d, enum vfm_division_kind kind, int n, const int32_t *cu,
	const int32_t (*grid)[3], int cp, int cp_i)
{
	int64_t *at = vfm_calloc((size_t)cp, sizeof(*at)), units, len, next_unit, next, before = 0;

	for (int s = 0; s < n; s++) {
		units_of(kind, grid[s], &units, &len, &next_unit, &next);
		for (int64_t u = 0; u < units && len > 0; u++, before += len) {
			int r = (int)((2 * before + len) * cp / (2 * m->total));

			for (int64_t i = 0; i < len; i++) {
				int64_t row = cu[s] + u * next_unit + i * next;

				m->to[row] = r;
				m->to_row[row] = (int32_t)at[r]++;
			}
			if (r == cp_i)
				d->cu[++d->units] = (int32_t)at[r];
		}
	}
	d->rows = at[cp_i];
	free(at);
}

static void plan(struct vfm_division *d, const struct map *m, int cp, int cp_i)
{
	int64_t *out = vfm_calloc(2 * (size_t)cp, sizeof(*out)), *in = out + cp;
	struct vfm_suballoc count = {0};

	place_division(d, &count);
	d->mem = vfm_calloc(1, count.used);
	place_division(d, &(struct vfm_suballoc){.base = d->mem});
	for (int r = 1; r < cp; r++) {
		out[r] = out[r - 1] + d->send[r - 1];
		in[r] = in[r - 1] + d->recv[r - 1];
	}
	/* In the division of tokens.h the rows of a rank are in the order of the pack, and so are both buffers. */
	for (int64_t i = 0; i < m->total; i++) {
		if (m->home[i] == cp_i) {
			int64_t j = out[m->to[i]]++;

			d->gather[j] = m->home_row[i];
			d->gather_inv[m->home_row[i]] = (int32_t)j;
		}
		if (m->to[i] == cp_i) {
			int64_t j = in[m->home[i]]++;

			d->place[m->to_row[i]] = (int32_t)j;
			d->place_inv[j] = m->to_row[i];
			d->pack_row[m->to_row[i]] = (int32_t)i;
		}
	}
	free(out);
}

void vfm_division_make(struct vfm_division *d, enum vfm_division_kind kind, int n, const int32_t *cu,
	const int32_t (*grid)[3], int cp, int cp_i)
{
	struct map m = {.total = cu[n]};
	struct vfm_suballoc count = {0};
	int64_t units = 0;
	void *mem;

	for (int s = 0; s < n; s++)
		units += kind == VFM_DIV_FRAMES ? grid[s][0] : (int64_t)grid[s][1] * grid[s][2];
	*d = (struct vfm_division){.send = vfm_calloc(2 * (size_t)cp, sizeof(int64_t)),
		.cu = vfm_calloc((size_t)units + 1, sizeof(int32_t))};
	d->recv = d->send + cp;
	place_map(&m, &count);
	mem = vfm_calloc(1, count.used);
	place_map(&m, &(struct vfm_suballoc){.base = mem});
	map_home(&m, n, cu, cp);
	map_new(&m, d, kind, n, cu, grid, cp, cp_i);
	for (int64_t i = 0; i < m.total; i++) {
		if (m.home[i] == cp_i) {
			d->send[m.to[i]]++;
			d->home++;
		}
		if (m.to[i] == cp_i)
			d->recv[m.home[i]]++;
	}
	plan(d, &m, cp, cp_i);
	free(mem);
}

void vfm_division_release(struct vfm_division *d)
{
	free(d->send);
	free(d->cu);
	free(d->mem);
	*d = (struct vfm_division){0};
}
