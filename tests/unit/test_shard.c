/* The shard algebra against brute force on small tensors: a tensor holds its own flat
 * indices, so that every element says where it came from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "spec/model/shard.h"

static uint64_t rnd_state = 12345;
static int64_t rnd(int64_t n)
{
	rnd_state = rnd_state * 6364136223846793005u + 1442695040888963407u;
	return (int64_t)((rnd_state >> 33) % (uint64_t)n);
}

static int64_t flat_of(int ndim, const int64_t *shape, const int64_t *ix)
{
	int64_t f = 0;

	for (int d = 0; d < ndim; d++)
		f = f * shape[d] + ix[d];
	return f;
}

static void unflat(int ndim, const int64_t *shape, int64_t f, int64_t *ix)
{
	for (int d = ndim; d-- > 0;) {
		ix[d] = f % shape[d];
		f /= shape[d];
	}
}

/* The flat global index of every element of the local tensor, straight from the
 * definition: along each dimension apply the cuts one after another to a list of indices. */
static int64_t *brute_part(const struct vfm_pdesc *d, const int *coord, const int *size, int64_t *lshape)
{
	int64_t *list[VFM_NDIM_MAX], n = 1, *out;

	for (int k = 0; k < d->ndim; k++) {
		lshape[k] = d->shape[k];
		list[k] = vfm_calloc((size_t)lshape[k] + 1, sizeof(int64_t));
		for (int64_t i = 0; i < lshape[k]; i++)
			list[k][i] = i;
	}
	for (int a = 0; a < VFM_AXES; a++) {
		int k = d->cut[a].dim, g = d->cut[a].groups;
		int64_t m = 0, per;

		if (!g || size[a] <= 1)
			continue;
		per = lshape[k] / g / size[a];
		for (int64_t i = 0; i < lshape[k]; i++)
			if (i % (lshape[k] / g) / per == coord[a])
				list[k][m++] = list[k][i];
		lshape[k] = m;
	}
	for (int k = 0; k < d->ndim; k++)
		n *= lshape[k];
	out = vfm_calloc((size_t)n + 1, sizeof(*out));
	for (int64_t i = 0; i < n; i++) {
		int64_t ix[VFM_NDIM_MAX], g[VFM_NDIM_MAX];

		unflat(d->ndim, lshape, i, ix);
		for (int k = 0; k < d->ndim; k++)
			g[k] = list[k][ix[k]];
		out[i] = flat_of(d->ndim, d->shape, g);
	}
	for (int k = 0; k < d->ndim; k++)
		free(list[k]);
	return out;
}

struct layout {
	struct vfm_pdesc d;
	int size[VFM_AXES];
};

static struct layout random_layout(void)
{
	struct layout l = {.d = {.name = "w", .ndim = 1 + (int)rnd(4)}};

	for (int k = 0; k < l.d.ndim; k++)
		l.d.shape[k] = 1 + rnd(3);
	for (int a = 0; a < VFM_AXES; a++) {
		l.size[a] = 1 + (int)rnd(3);
		if (rnd(2)) {
			l.d.cut[a] = (struct vfm_axis_cut){.groups = 1 + (int)rnd(3), .dim = (int)rnd(l.d.ndim)};
			if (l.d.shape[l.d.cut[a].dim] < 20)
				l.d.shape[l.d.cut[a].dim] *= l.d.cut[a].groups * l.size[a];
		}
	}
	return l;
}

static bool next_coord(const int *size, int *coord)
{
	for (int a = VFM_AXES; a-- > 0;) {
		if (++coord[a] < size[a])
			return true;
		coord[a] = 0;
	}
	return false;
}

/* The runs of part[a,b) must be what `ref` says, sorted and merged. */
static void check_runs(const struct vfm_runs *r, const int64_t *ref, int64_t n)
{
	int64_t seen = 0;

	for (size_t i = 0; i < r->n; i++) {
		const struct vfm_run *v = &r->v[i];

		assert_true(v->n > 0 && v->to >= 0 && v->to + v->n <= n);
		if (i) {
			assert_true(r->v[i - 1].from + r->v[i - 1].n <= v->from);
			assert_false(
				r->v[i - 1].from + r->v[i - 1].n == v->from && r->v[i - 1].to + r->v[i - 1].n == v->to);
		}
		for (int64_t k = 0; k < v->n; k++)
			assert_int_equal(ref[v->to + k], v->from + k);
		seen += v->n;
	}
	assert_int_equal(seen, n);
}

static void check_part(const struct layout *l, const int *coord, int64_t *count)
{
	struct vfm_err err = {0};
	struct vfm_part p;
	struct vfm_runs r = {0};
	struct vfm_box *box, *loc;
	int64_t lshape[VFM_NDIM_MAX], n, a, b, seen = 0;
	int64_t *ref = brute_part(&l->d, coord, l->size, lshape);
	int nb;

	assert_int_equal(vfm_part_of(&l->d, coord, l->size, &p, &err), 0);
	for (int k = 0; k < l->d.ndim; k++)
		assert_int_equal(p.shape[k], lshape[k]);
	n = vfm_part_numel(&p);
	for (int64_t i = 0; i < n; i++)
		count[ref[i]]++;
	vfm_runs_add_part(&r, &p, 0, n);
	check_runs(&r, ref, n);
	a = rnd(n + 1);
	b = a + rnd(n - a + 1);
	vfm_runs_clear(&r);
	vfm_runs_add_part(&r, &p, a, b);
	check_runs(&r, ref + a, b - a);
	/* the same range as boxes */
	vfm_part_range_boxes(&p, a, b, &box, &loc, &nb);
	for (int i = 0; i < nb; i++) {
		int64_t m = vfm_box_numel(&box[i]), ix[VFM_NDIM_MAX], g[VFM_NDIM_MAX], at;

		assert_true(vfm_box_inside(&box[i], l->d.shape));
		for (int64_t e = 0; e < m; e++) {
			unflat(p.ndim, box[i].ext, e, ix);
			for (int k = 0; k < p.ndim; k++) {
				g[k] = ix[k] + box[i].off[k];
				ix[k] += loc[i].off[k];
			}
			at = flat_of(p.ndim, p.shape, ix);
			assert_in_range(at, a, b - 1);
			assert_int_equal(ref[at], flat_of(p.ndim, l->d.shape, g));
		}
		seen += m;
	}
	assert_int_equal(seen, b - a);
	free(box);
	free(loc);
	vfm_runs_release(&r);
	vfm_part_release(&p);
	free(ref);
}

static bool divides(const struct layout *l)
{
	int coord[VFM_AXES] = {0};
	struct vfm_part p;
	bool ok = vfm_part_of(&l->d, coord, l->size, &p, NULL) == 0;

	vfm_part_release(&p);
	return ok;
}

static void test_parts(void **st)
{
	int tried = 0;

	(void)st;
	for (int it = 0; it < 3000 && tried < 400; it++) {
		struct layout l = random_layout();
		int coord[VFM_AXES] = {0};
		int64_t n = vfm_shape_numel(l.d.ndim, l.d.shape), *count, copies = 1;

		if (n > 2000 || !divides(&l))
			continue;
		tried++;
		count = vfm_calloc((size_t)n, sizeof(*count));
		do
			check_part(&l, coord, count);
		while (next_coord(l.size, coord));
		for (int a = 0; a < VFM_AXES; a++)
			if (!l.d.cut[a].groups)
				copies *= l.size[a]; /* each element as often as it is replicated */
		for (int64_t i = 0; i < n; i++)
			assert_int_equal(count[i], copies);
		free(count);
	}
	assert_true(tried >= 200);
}

/* From FSDP shards of one tp layout to FSDP shards of another: all data arrives. */
static void test_reshard(void **st)
{
	(void)st;
	for (int it = 0; it < 200; it++) {
		struct vfm_pdesc d = {.name = "qkv", .ndim = 3, .shape = {3 * 12, 4, 1 + rnd(5)}};
		struct vfm_pdesc e = d;
		int tp[2] = {1 << rnd(3), 1 << rnd(3)}, fs[2] = {1 + (int)rnd(5), 1 + (int)rnd(5)};
		int64_t got = 0;

		d.cut[VFM_AX_TP] = (struct vfm_axis_cut){3, 0};
		e.cut[VFM_AX_TP] = (struct vfm_axis_cut){1, rnd(2) ? 1 : 0};
		for (int t = 0; t < tp[1] * fs[1]; t++) {
			int c1[VFM_AXES] = {[VFM_AX_TP] = t % tp[1]}, s1[VFM_AXES] = {[VFM_AX_TP] = tp[1]};
			struct vfm_part pd;
			struct vfm_runs rd = {0};
			int64_t a, b, lsh[VFM_NDIM_MAX], *want, *dst;

			assert_int_equal(vfm_part_of(&e, c1, s1, &pd, NULL), 0);
			want = brute_part(&e, c1, s1, lsh);
			vfm_flat_cut(vfm_part_numel(&pd), fs[1], t / tp[1], &a, &b);
			vfm_runs_add_part(&rd, &pd, a, b);
			dst = vfm_calloc((size_t)(b - a) + 1, sizeof(*dst));
			memset(dst, 0xff, (size_t)(b - a) * sizeof(*dst));
			for (int s = 0; s < tp[0] * fs[0]; s++) {
				int c0[VFM_AXES] = {[VFM_AX_TP] = s % tp[0]}, s0[VFM_AXES] = {[VFM_AX_TP] = tp[0]};
				struct vfm_part ps;
				struct vfm_runs rs = {0};
				struct vfm_runs plan = {0};
				int64_t sa, sb, *src;

				assert_int_equal(vfm_part_of(&d, c0, s0, &ps, NULL), 0);
				src = brute_part(&d, c0, s0, lsh);
				vfm_flat_cut(vfm_part_numel(&ps), fs[0], s / tp[0], &sa, &sb);
				vfm_runs_add_part(&rs, &ps, sa, sb);
				got += vfm_runs_plan(&rs, &rd, &plan);
				for (size_t i = 0; i < plan.n; i++)
					memcpy(dst + plan.v[i].to, src + sa + plan.v[i].from,
						(size_t)plan.v[i].n * sizeof(*src));
				free(src);
				vfm_runs_release(&plan);
				vfm_runs_release(&rs);
				vfm_part_release(&ps);
			}
			for (int64_t i = 0; i < b - a; i++)
				assert_int_equal(dst[i], want[a + i]);
			free(want);
			free(dst);
			vfm_runs_release(&rd);
			vfm_part_release(&pd);
		}
		assert_int_equal(got, vfm_shape_numel(3, d.shape));
	}
}

static void test_range_boxes(void **st)
{
	static const int64_t shapes[][4] = {{7, 1, 1, 1}, {3, 4, 1, 1}, {2, 3, 4, 1}, {3, 2, 2, 3}, {1, 5, 1, 2}};
	static const int ndims[] = {1, 2, 3, 4, 4};

	(void)st;
	for (size_t s = 0; s < 5; s++) {
		int64_t n = vfm_shape_numel(ndims[s], shapes[s]);

		for (int64_t a = 0; a <= n; a++) {
			for (int64_t b = a; b <= n; b++) {
				struct vfm_box box[2 * VFM_NDIM_MAX];
				struct vfm_runs r = {0};
				int nb = vfm_range_boxes(ndims[s], shapes[s], a, b, box);
				int64_t at = 0;

				assert_true(nb <= 2 * ndims[s] - 1);
				for (int i = 0; i < nb; i++) { /* in order, each contiguous: one run in the end */
					vfm_runs_add_box(&r, shapes[s], &box[i], at, 0, INT64_MAX);
					at += vfm_box_numel(&box[i]);
				}
				assert_int_equal(r.n, b > a);
				if (b > a)
					assert_true(r.v[0].from == a && r.v[0].to == 0 && r.v[0].n == b - a);
				vfm_runs_release(&r);
			}
		}
	}
}

static int64_t runs_numel(const struct vfm_runs *r)
{
	int64_t n = 0;

	for (size_t i = 0; i < r->n; i++)
		n += r->v[i].n;
	return n;
}

static void test_box_clip(void **st)
{
	(void)st;
	for (int it = 0; it < 2000; it++) {
		int64_t shape[3] = {1 + rnd(4), 1 + rnd(4), 1 + rnd(4)}, n = vfm_shape_numel(3, shape), lo = rnd(n + 1),
			hi = lo + rnd(n - lo + 1);
		struct vfm_box b = {.ndim = 3}, c = {.ndim = 3}, x;
		struct vfm_runs r = {0};
		int64_t want = 0, both = 0;

		for (int d = 0; d < 3; d++) {
			b.off[d] = rnd(shape[d]);
			b.ext[d] = rnd(shape[d] - b.off[d] + 1);
			c.off[d] = rnd(shape[d]);
			c.ext[d] = rnd(shape[d] - c.off[d] + 1);
		}
		vfm_runs_add_box(&r, shape, &b, 100, lo, hi);
		for (int64_t f = 0, loc = 0; f < n; f++) {
			int64_t ix[3];
			bool in = true, in2 = true;

			unflat(3, shape, f, ix);
			for (int d = 0; d < 3; d++) {
				in &= ix[d] >= b.off[d] && ix[d] < b.off[d] + b.ext[d];
				in2 &= ix[d] >= c.off[d] && ix[d] < c.off[d] + c.ext[d];
			}
			both += in && in2;
			if (!in)
				continue;
			if (f >= lo && f < hi) {
				bool found = false;

				for (size_t i = 0; i < r.n; i++)
					found |= f >= r.v[i].from && f < r.v[i].from + r.v[i].n &&
						r.v[i].to + f - r.v[i].from == 100 + loc;
				assert_true(found);
				want++;
			}
			loc++;
		}
		assert_int_equal(runs_numel(&r), want);
		assert_int_equal(vfm_box_intersect(&b, &c, &x) ? vfm_box_numel(&x) : 0, both);
		vfm_runs_release(&r);
	}
}

static void test_flat_cut(void **st)
{
	(void)st;
	for (int64_t n = 0; n < 50; n++) {
		for (int k = 1; k < 12; k++) {
			int64_t at = 0, a, b;

			for (int r = 0; r < k; r++) {
				vfm_flat_cut(n, k, r, &a, &b);
				assert_int_equal(a, at);
				assert_true(b - a == n / k || b - a == n / k + 1);
				at = b;
			}
			assert_int_equal(at, n);
		}
	}
}

static void test_errors(void **st)
{
	struct vfm_pdesc d = {.name = "blocks.0.fc1.weight", .ndim = 2, .shape = {4097, 8}};
	int coord[VFM_AXES] = {0}, size[VFM_AXES] = {[VFM_AX_TP] = 2};
	int64_t big[3] = {1LL << 40, 1LL << 40, 0};
	struct vfm_err err = {0};
	struct vfm_part p;

	(void)st;
	d.cut[VFM_AX_TP] = (struct vfm_axis_cut){1, 0};
	assert_int_equal(vfm_part_of(&d, coord, size, &p, &err), VFM_EUSAGE);
	assert_string_equal(err.msg, "blocks.0.fc1.weight: dimension 0 (4097, in 1 group) cannot be cut over tp = 2");
	vfm_part_release(&p);
	d.cut[VFM_AX_TP].dim = 2;
	assert_int_equal(vfm_part_of(&d, coord, size, &p, &err), VFM_EUSAGE);
	d.cut[VFM_AX_TP].dim = 1;
	coord[VFM_AX_TP] = 2;
	assert_int_equal(vfm_part_of(&d, coord, size, &p, &err), VFM_EUSAGE);
	assert_int_equal(vfm_shape_numel(3, big), -1);
	assert_int_equal(vfm_shape_numel(0, NULL), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_reshard),
		cmocka_unit_test(test_range_boxes),
		cmocka_unit_test(test_box_clip),
		cmocka_unit_test(test_flat_cut),
		cmocka_unit_test(test_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
