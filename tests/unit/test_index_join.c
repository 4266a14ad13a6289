#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/permute.h"
#include "data/dataset/index.h"
#include "data/dataset/index_join.h"
#include "data/record/sample_key.h"
#include "io/file.h"

/* Datasets of the samples "s0", "s1", ...; the arrays of a sample are at places that tell it. */
enum { HEADER = 128, SHARD = 100 };

static char dir[] = "/tmp/vfm_join_XXXXXX";

static char *in_dir(const char *name)
{
	return vfm_strfmt("%s/%s", dir, name);
}

static struct vfm_index_record record_of(uint64_t sample, bool has_latent)
{
	char key[32];
	struct vfm_index_record r = {.sample_bytes = 100000};

	snprintf(key, sizeof(key), "s%llu", (unsigned long long)sample);
	r.id = vfm_sample_id(key);
	if (!has_latent) {
		r.flags = VFM_REC_NO_LATENT;
		return r;
	}
	r.c = r.t = r.h = r.w = 1;
	r.latent_dtype = VFM_NPY_F32;
	r.latent_header = HEADER;
	r.latent_bytes = HEADER + 4;
	r.latent_offset = sample;
	return r;
}

/* Writes a dataset of samples [n]; with texts instead of latents if has_text. */
static void write_dataset(const char *name, const uint64_t *samples, size_t n, bool has_text)
{
	static const char *const unnamed[] = {""};
	char *folder = in_dir(name), *path = vfm_strfmt("%s/" VFM_INDEX_NAME, folder), shard[32];
	const struct vfm_encoder_ids encoder_ids = {0};
	struct vfm_index_writer *w;
	struct vfm_err err;

	assert_int_equal(vfm_mkdir_p(folder, &err), 0);
	assert_int_equal(vfm_index_writer_open(&w, path, &err), 0);
	for (size_t i = 0; i < n; i++) {
		struct vfm_index_record r = record_of(samples[i], !has_text);
		const struct vfm_index_text t = {
			.offset = samples[i], .bytes = HEADER + 4, .header = HEADER, .rows = 1, .dtype = VFM_NPY_F32};

		snprintf(shard, sizeof(shard), "%06zu.tar", i / SHARD);
		if (i % SHARD == 0)
			assert_int_equal(vfm_index_writer_shard(w, shard, 1 << 20, &err), 0);
		r.n_texts = r.text_dim = has_text;
		assert_int_equal(vfm_index_writer_add(w, &r, &t, unnamed, &err), 0);
	}
	assert_int_equal(vfm_index_writer_commit(w, &encoder_ids, &err), 0);
	free(path);
	free(folder);
}

static void shuffle_samples(uint64_t *samples, size_t n, uint32_t seed)
{
	const struct vfm_rng rng = {.key = {seed}};
	uint64_t *old = vfm_malloc((n + 1) * sizeof(*old));
	struct vfm_permutation p;

	if (n)
		vfm_permutation_init(&p, n, &rng);
	memcpy(old, samples, n * sizeof(*old));
	for (size_t i = 0; i < n; i++)
		samples[i] = old[vfm_permuted(&p, i)];
	free(old);
}

/* Joins "a" and "b" into "ab". */
static int join_ab(enum vfm_nonmatch nonmatch, size_t table, struct vfm_index_join_stats *stats, struct vfm_err *err)
{
	char *a = in_dir("a"), *b = in_dir("b"), *ab = in_dir("ab");
	const char *parts[] = {a, b};
	const struct vfm_join_how how = {ab, parts, 2, nonmatch, table};
	int rc = vfm_index_join(&how, stats, err);

	free(a);
	free(b);
	free(ab);
	return rc;
}

/* Reads "ab": counts its samples, and those with a text; each text is that of its sample. */
static void check_join(int64_t want, int64_t want_texts)
{
	char *ab = in_dir("ab");
	struct vfm_index *ix;
	struct vfm_err err;
	int64_t texts = 0;

	assert_int_equal(vfm_index_open(&ix, ab, &err), 0);
	assert_int_equal(vfm_index_info(ix)->n_records, want);
	for (uint64_t i = 0; i < vfm_index_info(ix)->n_records; i++) {
		struct vfm_index_text t;
		struct vfm_index_record r;

		assert_int_equal(vfm_index_at(ix, i, &r, &err), 0);
		texts += r.n_texts;
		if (r.n_texts == 0)
			continue;
		assert_int_equal(vfm_index_text(ix, &r, 0, &t, &err), 0);
		assert_int_equal(t.offset, r.latent_offset);
		assert_true(t.shard > 0);
	}
	assert_int_equal(texts, want_texts);
	vfm_index_close(ix);
	free(ab);
}

/* b has two thirds of the samples of a from number `same` on in another order, before that all in the same order, and
 * others that a lacks. */
static void check_order(size_t n, size_t same, size_t table)
{
	uint64_t *a = vfm_malloc((n + 1) * sizeof(*a)), *b = vfm_malloc((2 * n + 1) * sizeof(*b));
	struct vfm_index_join_stats stats;
	struct vfm_err err;
	size_t n_b = 0, common = same;

	for (size_t i = 0; i < n; i++)
		a[i] = i;
	shuffle_samples(a, n, 7);
	for (size_t i = 0; i < n; i++)
		if (i < same || i % 3)
			b[n_b++] = a[i];
	common = n_b;
	for (size_t i = 0; i < n / 2; i++)
		b[n_b++] = n + i;
	shuffle_samples(b + same, n_b - same, 8);
	write_dataset("a", a, n, false);
	write_dataset("b", b, n_b, true);
	assert_int_equal(join_ab(VFM_NONMATCH_SKIP, table, &stats, &err), 0);
	assert_int_equal(stats.samples, common);
	assert_int_equal(stats.left, n - common);
	check_join((int64_t)common, (int64_t)common);
	assert_int_equal(join_ab(VFM_NONMATCH_NONE, table, &stats, &err), 0);
	assert_int_equal(stats.partial, n - common);
	check_join((int64_t)n, (int64_t)common);
	if (common < n)
		assert_int_equal(join_ab(VFM_NONMATCH_ERROR, table, &stats, &err), VFM_EUSAGE);
	free(a);
	free(b);
}

static void test_orders(void **state)
{
	static const size_t tables[] = {0, 1024}; /* the second writes runs to files */

	(void)state;
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		check_order(3000, 0, tables[i]);
		check_order(3000, 1700, tables[i]);
		check_order(500, 500, tables[i]);
		check_order(2, 1, tables[i]);
	}
}

/* Two samples of one id in b are an error if they are looked for by id. */
static void test_twice(void **state)
{
	const uint64_t a[] = {1, 2, 3, 4}, b[] = {1, 4, 3, 2, 4};
	struct vfm_index_join_stats stats;
	struct vfm_err err;

	(void)state;
	write_dataset("a", a, 4, false);
	write_dataset("b", b, 5, true);
	assert_int_equal(join_ab(VFM_NONMATCH_SKIP, 0, &stats, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "samples 1 and 4 have the id"));
}

/* A sample that a has twice is found twice. */
static void test_repeated_in_a(void **state)
{
	const uint64_t a[] = {1, 2, 2, 3, 1}, b[] = {3, 2, 1};
	struct vfm_index_join_stats stats;
	struct vfm_err err;

	(void)state;
	write_dataset("a", a, 5, false);
	write_dataset("b", b, 3, true);
	assert_int_equal(join_ab(VFM_NONMATCH_ERROR, 0, &stats, &err), 0);
	check_join(5, 5);
}

static int make_folder(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_folder(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_orders),
		cmocka_unit_test(test_twice),
		cmocka_unit_test(test_repeated_in_a),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
