/* shard.c - boxes and flat ranges of tensors, and runs of contiguous elements that map one to the other. */
#include "spec/model/shard.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char *const axis_names[VFM_AXES] = {"pp", "dp", "ep", "cp", "tp"};

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* ---- boxes ---- */

int64_t vfm_shape_numel(int ndim, const int64_t *shape)
{
	int64_t n = 1;
	bool zero = false;

	for (int d = 0; d < ndim; d++) {
		if (shape[d] < 0)
			return -1;
		if (shape[d] == 0)
			zero = true;
		else if (__builtin_mul_overflow(n, shape[d], &n) || n > (int64_t)1 << 60)
			return -1; /* also refuses [2^40, 2^40, 0], which no model has */
	}
	return zero ? 0 : n;
}

struct vfm_box vfm_box_full(int ndim, const int64_t *shape)
{
	struct vfm_box b = {.ndim = ndim};

	for (int d = 0; d < ndim; d++)
		b.ext[d] = shape[d];
	return b;
}

int64_t vfm_box_numel(const struct vfm_box *b)
{
	return vfm_shape_numel(b->ndim, b->ext);
}

bool vfm_box_inside(const struct vfm_box *b, const int64_t *shape)
{
	for (int d = 0; d < b->ndim; d++)
		if (b->off[d] < 0 || b->ext[d] < 0 || b->off[d] > shape[d] || b->ext[d] > shape[d] - b->off[d])
			return false;
	return true;
}

bool vfm_box_intersect(const struct vfm_box *a, const struct vfm_box *b, struct vfm_box *out)
{
	struct vfm_box r = {.ndim = a->ndim};

	for (int d = 0; d < a->ndim; d++) {
		int64_t lo = max64(a->off[d], b->off[d]), hi = min64(a->off[d] + a->ext[d], b->off[d] + b->ext[d]);

		if (lo >= hi)
			return false;
		r.off[d] = lo;
		r.ext[d] = hi - lo;
	}
	if (out)
		*out = r;
	return true;
}

/* Peels partial rows off the front and the back, from the innermost dimension outwards:
 * at level d a unit is a full slab of the dimensions after d. */
int vfm_range_boxes(int ndim, const int64_t *shape, int64_t a, int64_t b, struct vfm_box out[2 * VFM_NDIM_MAX])
{
	struct vfm_box head[VFM_NDIM_MAX], tail[VFM_NDIM_MAX];
	int nh = 0, nt = 0, n = 0;
	int64_t unit = 1;

	if (a >= b)
		return 0;
	if (ndim == 0) {
		out[0] = (struct vfm_box){0};
		return 1;
	}
	for (int d = ndim - 1; d >= 0 && a < b; d--) {
		int64_t next = unit * shape[d];
		int64_t a_up = d > 0 ? (a + next - 1) / next * next : b, b_down = d > 0 ? b / next * next : b;
		struct vfm_box *dst[2] = {NULL, NULL};
		int64_t lo[2] = {0, 0}, hi[2] = {0, 0};

		if (d == 0 || a / next == (b - 1) / next) { /* all within one row */
			dst[0] = &head[nh++], lo[0] = a, hi[0] = b;
			a = b;
		} else {
			if (a < a_up)
				dst[0] = &head[nh++], lo[0] = a, hi[0] = a_up;
			if (b_down < b)
				dst[1] = &tail[nt++], lo[1] = b_down, hi[1] = b;
			a = a_up;
			b = b_down;
		}
		for (int k = 0; k < 2; k++) {
			int64_t rest = lo[k];

			if (!dst[k])
				continue;
			*dst[k] = (struct vfm_box){.ndim = ndim};
			for (int e = ndim - 1; e > d; e--)
				dst[k]->ext[e] = shape[e];
			rest /= unit;
			dst[k]->off[d] = rest % shape[d];
			dst[k]->ext[d] = (hi[k] - lo[k]) / unit;
			rest /= shape[d];
			for (int e = d - 1; e >= 0; e--) {
				dst[k]->off[e] = rest % shape[e];
				dst[k]->ext[e] = 1;
				rest /= shape[e];
			}
		}
		unit = next;
	}
	for (int i = 0; i < nh; i++)
		out[n++] = head[i];
	for (int i = nt; i-- > 0;)
		out[n++] = tail[i];
	return n;
}

/* ---- a rank's part ---- */

/* Appends a run; merges it with the last one if it continues it. */
static void run_push(struct vfm_runs *r, int64_t from, int64_t to, int64_t n)
{
	struct vfm_run *last = r->n ? &r->v[r->n - 1] : NULL;

	if (n <= 0)
		return;
	if (last && last->from + last->n == from && last->to + last->n == to) {
		last->n += n;
		return;
	}
	vfm_grow(&r->v, &r->cap, r->n + 1, sizeof(*r->v));
	r->v[r->n++] = (struct vfm_run){from, to, n};
}

/* Keeps, of each of g groups of the dimension as `s` has it (length len), part r of n. */
static int64_t cut_runs(struct vfm_runs *s, int64_t len, int g, int n, int r)
{
	struct vfm_runs out = {0};
	int64_t share = len / g / n, loc = 0;

	for (int k = 0; k < g; k++) {
		int64_t lo = len / g * k + share * r, hi = lo + share;

		for (size_t i = 0; i < s->n; i++) {
			int64_t a = max64(lo, s->v[i].to), b = min64(hi, s->v[i].to + s->v[i].n);

			if (a < b) {
				run_push(&out, s->v[i].from + (a - s->v[i].to), loc, b - a);
				loc += b - a;
			}
		}
	}
	free(s->v);
	*s = out;
	return loc;
}

static int cut_dims(const struct vfm_pdesc *d, const int *coord, const int *size, struct vfm_runs *segs, int64_t *len,
	struct vfm_err *err)
{
	for (int a = 0; a < VFM_AXES; a++) {
		const struct vfm_axis_cut *c = &d->cut[a];
		int n = size[a] > 1 ? size[a] : 1;

		if (!c->groups || n == 1)
			continue;
		if (c->groups < 0 || c->dim < 0 || c->dim >= d->ndim)
			return vfm_fail(err, VFM_EUSAGE, "%s: bad cut over %s: %d groups along dimension %d of %d",
				d->name, axis_names[a], c->groups, c->dim, d->ndim);
		if (coord[a] < 0 || coord[a] >= n)
			return vfm_fail(err, VFM_EUSAGE, "%s: rank %d of %s = %d", d->name, coord[a], axis_names[a], n);
		if (len[c->dim] % c->groups || len[c->dim] / c->groups % n)
			return vfm_fail(err, VFM_EUSAGE,
				"%s: dimension %d (%lld, in %d group%s) cannot be cut over %s = %d", d->name, c->dim,
				(long long)len[c->dim], c->groups, c->groups == 1 ? "" : "s", axis_names[a], n);
		len[c->dim] = cut_runs(&segs[c->dim], len[c->dim], c->groups, n, coord[a]);
	}
	return 0;
}

static void part_boxes(struct vfm_part *p, const struct vfm_runs *segs)
{
	size_t ix[VFM_NDIM_MAX] = {0};

	p->n = 1;
	for (int d = 0; d < p->ndim; d++)
		p->n *= (int)segs[d].n; /* a dimension of length 0 has no segments: no boxes */
	p->box = vfm_calloc((size_t)p->n + 1, sizeof(*p->box));
	p->loc = vfm_calloc((size_t)p->n + 1, sizeof(*p->loc));
	for (int i = 0; i < p->n; i++) {
		p->box[i].ndim = p->loc[i].ndim = p->ndim;
		for (int d = 0; d < p->ndim; d++) {
			const struct vfm_run *s = &segs[d].v[ix[d]];

			p->box[i].off[d] = s->from;
			p->loc[i].off[d] = s->to;
			p->box[i].ext[d] = p->loc[i].ext[d] = s->n;
		}
		for (int d = p->ndim; d-- > 0;) {
			if (++ix[d] < segs[d].n)
				break;
			ix[d] = 0;
		}
	}
}

int vfm_part_of(const struct vfm_pdesc *d, const int coord[VFM_AXES], const int size[VFM_AXES], struct vfm_part *out,
	struct vfm_err *err)
{
	struct vfm_runs segs[VFM_NDIM_MAX] = {{0}}; /* of a dimension */
	int rc;

	*out = (struct vfm_part){.ndim = d->ndim};
	if (d->ndim < 0 || d->ndim > VFM_NDIM_MAX || vfm_shape_numel(d->ndim, d->shape) < 0)
		return vfm_fail(err, VFM_EUSAGE, "%s: bad shape", d->name);
	for (int i = 0; i < d->ndim; i++) {
		out->shape[i] = out->global[i] = d->shape[i];
		run_push(&segs[i], 0, 0, d->shape[i]);
	}
	rc = cut_dims(d, coord, size, segs, out->shape, err);
	if (!rc)
		part_boxes(out, segs);
	for (int i = 0; i < d->ndim; i++)
		free(segs[i].v);
	return rc;
}

void vfm_part_full(struct vfm_part *out, int ndim, const int64_t *shape)
{
	bool empty = vfm_shape_numel(ndim, shape) == 0;

	*out = (struct vfm_part){.ndim = ndim, .n = empty ? 0 : 1};
	out->box = vfm_calloc(1, sizeof(*out->box));
	out->loc = vfm_calloc(1, sizeof(*out->loc));
	out->box[0] = out->loc[0] = vfm_box_full(ndim, shape);
	for (int i = 0; i < ndim; i++)
		out->shape[i] = out->global[i] = shape[i];
}

void vfm_part_release(struct vfm_part *p)
{
	free(p->box);
	free(p->loc);
	*p = (struct vfm_part){0};
}

int64_t vfm_part_numel(const struct vfm_part *p)
{
	return vfm_shape_numel(p->ndim, p->shape);
}

void vfm_flat_cut(int64_t n_elem, int n, int r, int64_t *a, int64_t *b)
{
	int64_t q = n_elem / n, m = n_elem % n;

	*a = q * r + min64(r, m);
	*b = *a + q + (r < m);
}

void vfm_part_range_boxes(
	const struct vfm_part *p, int64_t a, int64_t b, struct vfm_box **box, struct vfm_box **loc, int *n)
{
	struct vfm_box cut[2 * VFM_NDIM_MAX];
	int nc = vfm_range_boxes(p->ndim, p->shape, a, b, cut);

	*n = 0;
	*box = vfm_calloc((size_t)nc * (size_t)p->n + 1, sizeof(**box));
	*loc = vfm_calloc((size_t)nc * (size_t)p->n + 1, sizeof(**loc));
	for (int i = 0; i < nc; i++) {
		for (int k = 0; k < p->n; k++) {
			struct vfm_box x;

			if (!vfm_box_intersect(&cut[i], &p->loc[k], &x))
				continue;
			(*loc)[*n] = (*box)[*n] = x;
			for (int d = 0; d < p->ndim; d++)
				(*box)[*n].off[d] += p->box[k].off[d] - p->loc[k].off[d];
			++*n;
		}
	}
}

/* ---- runs ---- */

void vfm_runs_release(struct vfm_runs *r)
{
	free(r->v);
	*r = (struct vfm_runs){0};
}

void vfm_runs_clear(struct vfm_runs *r)
{
	r->n = 0;
}

static int run_cmp(const void *a, const void *b)
{
	const struct vfm_run *x = a, *y = b;

	return (x->from > y->from) - (x->from < y->from);
}

/* Sorts if something was added before what stood there, and merges neighbours. */
static void runs_order(struct vfm_runs *r)
{
	size_t n = r->n, i = 1;

	while (i < n && r->v[i - 1].from <= r->v[i].from)
		i++;
	if (i >= n)
		return;
	qsort(r->v, n, sizeof(*r->v), run_cmp);
	r->n = 0;
	for (i = 0; i < n; i++)
		run_push(r, r->v[i].from, r->v[i].to, r->v[i].n);
}

void vfm_runs_add_range(struct vfm_runs *r, int64_t a, int64_t b, int64_t loc0)
{
	run_push(r, a, loc0, b - a);
	runs_order(r);
}

/* Rows of a box: the longest contiguous stretches, which span dimension `d` and all
 * after it, where those after are full. */
struct rows {
	int d;          /* outer dimensions [0, d) count the rows */
	int64_t n, len; /* rows, elements of each */
	int64_t base;   /* flat global index of the box's corner */
	int64_t stride[VFM_NDIM_MAX];
};

static struct rows box_rows(const int64_t *shape, const struct vfm_box *b)
{
	struct rows r = {.n = 1, .len = 1};
	int64_t s = 1;

	for (int d = b->ndim; d-- > 0;) {
		r.stride[d] = s;
		r.base += b->off[d] * s;
		s *= shape[d];
	}
	r.d = b->ndim;
	while (r.d > 0) {
		bool full = b->ext[r.d - 1] == shape[r.d - 1];

		r.len *= b->ext[--r.d];
		if (!full)
			break;
	}
	for (int d = 0; d < r.d; d++)
		r.n *= b->ext[d];
	return r;
}

static int64_t row_start(const struct rows *r, const struct vfm_box *b, int64_t i)
{
	int64_t g = r->base;

	for (int d = r->d; d-- > 0;) {
		g += i % b->ext[d] * r->stride[d];
		i /= b->ext[d];
	}
	return g;
}

/* The rows of a box rise in the flat index, so the first one that reaches beyond lo is found by bisection. */
void vfm_runs_add_box(
	struct vfm_runs *r, const int64_t *shape, const struct vfm_box *box, int64_t loc0, int64_t lo, int64_t hi)
{
	struct rows rows;
	int64_t a = 0, b;

	if (vfm_box_numel(box) <= 0)
		return;
	rows = box_rows(shape, box);
	b = rows.n;
	while (a < b) {
		int64_t m = a + (b - a) / 2;

		if (row_start(&rows, box, m) + rows.len <= lo)
			a = m + 1;
		else
			b = m;
	}
	for (; a < rows.n; a++) {
		int64_t g = row_start(&rows, box, a), x = max64(g, lo), y = min64(g + rows.len, hi);

		if (g >= hi)
			break;
		run_push(r, x, loc0 + a * rows.len + (x - g), y - x);
	}
	runs_order(r);
}

void vfm_runs_add_part(struct vfm_runs *r, const struct vfm_part *p, int64_t a, int64_t b)
{
	struct vfm_runs in_box = {0}, in_loc = {0};

	for (int k = 0; k < p->n; k++) {
		/* box storage -> global and box storage -> local are both known: join them */
		vfm_runs_clear(&in_box);
		vfm_runs_clear(&in_loc);
		vfm_runs_add_box(&in_loc, p->shape, &p->loc[k], 0, a, b);
		vfm_runs_add_box(&in_box, p->global, &p->box[k], 0, 0, INT64_MAX);
		for (size_t i = 0, j = 0; i < in_loc.n && j < in_box.n;) {
			const struct vfm_run *l = &in_loc.v[i], *g = &in_box.v[j];
			int64_t x = max64(l->to, g->to), y = min64(l->to + l->n, g->to + g->n);

			if (x < y)
				run_push(r, g->from + (x - g->to), l->from + (x - l->to) - a, y - x);
			if (l->to + l->n < g->to + g->n)
				i++;
			else
				j++;
		}
	}
	runs_order(r);
	vfm_runs_release(&in_box);
	vfm_runs_release(&in_loc);
}

int64_t vfm_runs_plan(const struct vfm_runs *src, const struct vfm_runs *dst, struct vfm_runs *out)
{
	int64_t total = 0;

	for (size_t i = 0, j = 0; i < src->n && j < dst->n;) {
		const struct vfm_run *s = &src->v[i], *d = &dst->v[j];
		int64_t x = max64(s->from, d->from), y = min64(s->from + s->n, d->from + d->n);

		if (x < y) {
			run_push(out, s->to + (x - s->from), d->to + (x - d->from), y - x);
			total += y - x;
		}
		if (s->from + s->n < d->from + d->n)
			i++;
		else
			j++;
	}
	return total;
}
