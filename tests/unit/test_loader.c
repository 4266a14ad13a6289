/* Patchify, and the loader: contents, order, resume, ranks, damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/loader/loader.h"
#include "data/plan/pack.h"
#include "data/record/caption.h"
#include "dataset.h"
#include "spec/layout/patch.h"

#define N_A   61
#define BATCH 3

static char dir[] = "/tmp/vfm_loader_XXXXXX", plan_path[64], data_dir[64];
static const struct dataset_dims dims[] = {{1, 4, 4, 3}, {3, 6, 4, 5}, {2, 2, 8, 0}, {5, 8, 8, 2}};

static void make_plan(void)
{
	struct vfm_packing_opts o = {
		.context = 100, .batch = BATCH, .epochs = 2, .seed = 3, .cost = vfm_pack_cost_default()};
	struct vfm_err err = {0};

	assert_int_equal(dataset_plan(plan_path, data_dir, &o, &err), 0);
}

static int setup(void **state)
{
	struct vfm_err err = {0};

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(plan_path, sizeof(plan_path), "%s/plan.jsonl", dir);
	snprintf(data_dir, sizeof(data_dir), "%s/data", dir);
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	make_plan();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

static void patchify(void **state)
{
	const int32_t d[3] = {4, 6, 8}, p[3] = {2, 3, 2}, bad[3] = {4, 7, 8};
	int32_t g[3];
	float x[3 * 4 * 6 * 8], y[3 * 4 * 6 * 8], z[3 * 4 * 6 * 8];
	uint16_t half[3 * 4 * 6 * 8], tokens[3 * 4 * 6 * 8];
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(vfm_patch_grid(d, p, g, &err), 2 * 2 * 4);
	assert_int_equal(vfm_patch_grid(bad, p, g, &err), VFM_EINPUT);
	vfm_patch_grid(d, p, g, &err);
	for (int i = 0; i < 3 * 4 * 6 * 8; i++)
		x[i] = (float)i;
	vfm_patchify(x, VFM_NPY_F32, 3, d, p, y, VFM_F32);
	for (int c = 0; c < 3; c++) /* the formula of the header */
		for (int t = 0; t < 4; t++)
			for (int h = 0; h < 6; h++)
				for (int w = 0; w < 8; w++) {
					int token = ((t / 2) * g[1] + h / 3) * g[2] + w / 2;
					int feature = ((c * 2 + t % 2) * 3 + h % 3) * 2 + w % 2;

					assert_true(y[token * 36 + feature] == x[((c * 4 + t) * 6 + h) * 8 + w]);
				}
	vfm_unpatchify(y, 3, d, p, z);
	assert_memory_equal(x, z, sizeof(x));
	for (int i = 0; i < 3 * 4 * 6 * 8; i++)
		half[i] = (uint16_t)i;
	vfm_patchify(half, VFM_NPY_BF16, 3, d, p, tokens, VFM_BF16);
	for (int i = 0; i < 3 * 4 * 6 * 8; i++)
		assert_int_equal(tokens[i], (int)y[i]);
	for (int i = 0; i < 3 * 4 * 6 * 8; i++)
		half[i] = (uint16_t)(0x3f80 + i); /* bf16 from 1 on, f16 from 1.9 on: widened exactly */
	for (int k = 0; k < 2; k++) {
		const enum vfm_npy_type type = k ? VFM_NPY_BF16 : VFM_NPY_F16;
		float wide[3 * 4 * 6 * 8], want[3 * 4 * 6 * 8];

		vfm_dtype_convert(VFM_F32, x, vfm_dtype_of_npy(type), half, 3 * 4 * 6 * 8);
		vfm_patchify(x, VFM_NPY_F32, 3, d, p, want, VFM_F32);
		vfm_patchify(half, type, 3, d, p, wide, VFM_F32);
		assert_memory_equal(wide, want, sizeof(want));
	}
}

/* A hash of all that a pack holds. */
static uint64_t digest(const struct vfm_pack *b)
{
	uint64_t h[14] = {(uint64_t)b->step, (uint64_t)b->index, (uint64_t)b->step_tokens};
	size_t n = (size_t)b->n, t = (size_t)b->tokens;

	h[3] = vfm_fnv64(b->id, n * 8);
	h[4] = vfm_fnv64(b->grid, n * 12);
	h[5] = vfm_fnv64(b->cu_seqlens, (n + 1) * 4);
	h[6] = vfm_fnv64(b->cu_text, (n + 1) * 4);
	h[7] = vfm_fnv64(b->x0, t * (size_t)b->patch_dim * vfm_dtype_size(b->x0_dtype));
	h[8] = vfm_fnv64(b->text, (size_t)b->text_tokens * (size_t)b->text_dim * 4);
	h[9] = vfm_fnv64(b->seg, t * 4);
	h[10] = vfm_fnv64(b->idx, t * 4);
	h[11] = vfm_fnv64(b->pos, t * 6);
	h[12] = b->cu_text2 ? vfm_fnv64(b->cu_text2, (n + 1) * 4) : 0;
	h[13] = b->text2 ? vfm_fnv64(b->text2, (size_t)b->text2_tokens * (size_t)b->text2_dim * 4) : 0;
	return vfm_fnv64(h, sizeof(h));
}

static float x0_value(const struct vfm_pack *b, int64_t i)
{
	if (b->x0_dtype == VFM_F32)
		return ((const float *)b->x0)[i];
	return (b->x0_dtype == VFM_BF16 ? vfm_bf16_to_f32 : vfm_f16_to_f32)(((const uint16_t *)b->x0)[i]);
}

static float latent_value(uint64_t n, int64_t k)
{
	float f = dataset_value(n, k);

	return dataset_is_bf16(n) ? vfm_bf16_to_f32(vfm_f32_to_bf16(f)) : f;
}

static void check_pack(const struct vfm_pack *b, int text_len)
{
	int n_bf16 = 0;

	assert_int_equal((uintptr_t)b->x0 % 64, 0);
	assert_int_equal((uintptr_t)b->pos % 64, 0);
	assert_int_equal(b->patch_dim, DATASET_C * 4);
	assert_int_equal(b->cu_seqlens[b->n], b->tokens);
	assert_int_equal(b->cu_text[b->n], b->text_tokens);
	for (int32_t i = 0; i < b->n; i++) {
		uint64_t n = b->id[i] - 1000;
		const struct dataset_dims *d = &dims[n % 4];
		const int32_t *g = b->grid[i];

		assert_true(n < N_A);
		n_bf16 += dataset_is_bf16(n);
		assert_true(g[0] == d->t && g[1] == d->h / 2 && g[2] == d->w / 2);
		assert_int_equal(b->cu_text[i + 1] - b->cu_text[i], d->text_len < text_len ? d->text_len : text_len);
		for (int32_t k = b->cu_text[i] * b->text_dim; k < b->cu_text[i + 1] * b->text_dim; k++)
			assert_true(b->text[k] == dataset_value(n + 1, k - b->cu_text[i] * b->text_dim));
		for (int32_t k = b->cu_seqlens[i]; k < b->cu_seqlens[i + 1]; k++) {
			const int16_t *p = b->pos[k];

			assert_int_equal(b->seg[k], i);
			assert_int_equal(b->idx[k], k - b->cu_seqlens[i]);
			assert_int_equal((p[0] * g[1] + p[1]) * g[2] + p[2], b->idx[k]);
			for (int f = 0; f < b->patch_dim; f++) { /* (c, pt = 1, ph, pw) */
				int c = f / 4, h = p[1] * 2 + f / 2 % 2, w = p[2] * 2 + f % 2;

				assert_true(x0_value(b, k * b->patch_dim + f) ==
					latent_value(n, ((c * d->t + p[0]) * d->h + h) * d->w + w));
			}
		}
	}
	assert_int_equal(b->x0_dtype, n_bf16 == b->n ? VFM_BF16 : n_bf16 || b->cond || !b->n ? VFM_F32 : VFM_F16);
}

/* Reads to the end; digests[k] of every pack.  Returns their number.  check: n_parts is 0. */
static int read_all(const struct vfm_loader_opts *o, uint64_t *digests, bool check)
{
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	struct vfm_loader *l = vfm_loader_open(m, o, &err);
	struct vfm_pack *b;
	int n = 0, rc;

	assert_non_null(l);
	while ((rc = vfm_loader_next(l, &b, &err)) == 1) {
		if (check)
			check_pack(b, o->text_len ? o->text_len : INT32_MAX);
		digests[n++] = digest(b);
		vfm_loader_release(l, b);
	}
	assert_int_equal(rc, 0);
	if (check) /* a cp rank counts those of the others, too */
		assert_int_equal(vfm_loader_stats(l).packs, n);
	vfm_loader_close(l);
	vfm_plan_close(m);
	return n;
}

/* Texts keep their first rows, whole where they are short. */
static void text_len(void **state)
{
	struct vfm_loader_opts all = {0}, some = {.text_len = 2}, more = {.text_len = 512};
	uint64_t a[512], s[512], m[512];
	int n = read_all(&all, a, true);

	(void)state;
	assert_int_equal(read_all(&some, s, true), n);
	assert_int_equal(read_all(&more, m, true), n);
	assert_memory_not_equal(a, s, (size_t)n * sizeof(*a));
	assert_memory_equal(a, m, (size_t)n * sizeof(*a));
}

static void contents(void **state)
{
	struct vfm_loader_opts o = {0};
	uint64_t d[512];

	(void)state;
	assert_true(read_all(&o, d, true) >= 30);
}

/* Packs of bf16 latents only, of none, and of both; a slot of the loader serves all of them. */
static void bf16_latents(void **state)
{
	static const int every[] = {1, 2};
	struct vfm_loader_opts o = {.prefetch = 1};
	uint64_t d[512];
	struct vfm_err err = {0};

	(void)state;
	for (int i = 0; i < 2; i++) {
		dataset_bf16_every = every[i];
		assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
		make_plan();
		assert_true(read_all(&o, d, true) >= 30);
	}
	dataset_bf16_every = 0;
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	make_plan();
}

/* Conditions and image rows: delivered in the order of the samples, or not; and refused where there are none. */
static void extra_arrays(void **state)
{
	struct vfm_loader_opts o = {.prefetch = 1}, wanted = {.cond = true, .image = true};
	struct vfm_err err = {0};
	struct vfm_plan *m;
	struct vfm_loader *l;
	struct vfm_pack *b;
	uint64_t plain[512], d[512];
	int n = read_all(&o, plain, true), packs = 0;

	(void)state;
	m = vfm_plan_open(plan_path, &err);
	assert_null(vfm_loader_open(m, &wanted, &err));
	assert_non_null(strstr(err.msg, "have no condition"));
	vfm_plan_close(m);
	dataset_extras = true;
	dataset_bf16_every = 2;
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	make_plan();
	assert_int_equal(read_all(&o, d, true), n); /* not delivered */
	m = vfm_plan_open(plan_path, &err);
	assert_int_equal(vfm_plan_header(m)->cond_channels, DATASET_C);
	l = vfm_loader_open(m, &wanted, &err);
	assert_non_null(l);
	while (vfm_loader_next(l, &b, &err) == 1) {
		size_t values = (size_t)(b->tokens * b->patch_dim);

		check_pack(b, INT32_MAX);
		assert_int_equal(b->cond_dim, b->patch_dim);
		assert_memory_equal(b->cond, b->x0, values * vfm_dtype_size(b->x0_dtype));
		for (int i = 0; i < b->n; i++)
			for (int k = 0; k < DATASET_IMAGE_LEN * DATASET_IMAGE_DIM; k++)
				assert_true(b->image[i * DATASET_IMAGE_LEN * DATASET_IMAGE_DIM + k] ==
					dataset_value(b->id[i] - 1000 + 5, k));
		packs++;
		vfm_loader_release(l, b);
	}
	assert_int_equal(packs, n);
	vfm_loader_close(l);
	vfm_plan_close(m);
	dataset_extras = false;
	dataset_bf16_every = 0;
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	make_plan();
}

/* Checks the second texts of a pack, which keeps `most` rows of each.  Returns how many samples have one. */
static int check_text2(const struct vfm_pack *b, int64_t most)
{
	int n = 0;

	assert_int_equal(b->text2_dim, DATASET_TEXT2_DIM);
	assert_int_equal(b->cu_text2[0], 0);
	assert_int_equal(b->cu_text2[b->n], b->text2_tokens);
	for (int i = 0; i < b->n; i++) {
		int64_t rows = dataset_text2_rows(b->id[i] - 1000);

		rows = rows < most ? rows : most;
		n += rows > 0;
		assert_int_equal(b->cu_text2[i + 1] - b->cu_text2[i], rows);
		for (int64_t k = 0; k < rows * DATASET_TEXT2_DIM; k++)
			assert_true(b->text2[b->cu_text2[i] * DATASET_TEXT2_DIM + k] ==
				dataset_value(b->id[i] - 1000 + 9, k));
	}
	return n;
}

/* Reads all packs; returns the samples with a second text. */
static int read_text2(const struct vfm_loader_opts *o, int64_t most)
{
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	struct vfm_loader *l = vfm_loader_open(m, o, &err);
	struct vfm_pack *b;
	int n = 0;

	assert_non_null(l);
	while (vfm_loader_next(l, &b, &err) == 1) {
		check_pack(b, INT32_MAX);
		n += check_text2(b, most);
		vfm_loader_release(l, b);
	}
	assert_int_equal(err.code, 0);
	vfm_loader_close(l);
	vfm_plan_close(m);
	return n;
}

static void remake(int text2_every)
{
	struct vfm_err err = {0};

	dataset_text2_every = text2_every;
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	make_plan();
}

/* Some samples have a second text, of different lengths. */
static void second_texts(void **state)
{
	struct vfm_loader_opts o = {.prefetch = 1}, wanted = {.text2_dim = DATASET_TEXT2_DIM},
			       cut = {.text2_dim = DATASET_TEXT2_DIM, .text2_len = 2}, wide = {.text2_dim = 7};
	struct vfm_err err = {0};
	struct vfm_plan *m;
	uint64_t plain[512], d[512];
	int n = read_all(&o, plain, true);

	(void)state;
	assert_int_equal(read_text2(&wanted, 0), 0); /* no sample has one */
	remake(2);
	assert_int_equal(read_all(&o, d, true), n); /* not delivered */
	assert_true(read_text2(&wanted, INT64_MAX) > 10);
	assert_int_equal(read_text2(&cut, 2), read_text2(&wanted, INT64_MAX));
	wanted.threads = 1;
	wanted.prefetch = 1; /* all packs in two slots */
	assert_true(read_text2(&wanted, INT64_MAX) > 10);
	m = vfm_plan_open(plan_path, &err);
	assert_int_equal(vfm_plan_header(m)->text2_dim, DATASET_TEXT2_DIM);
	assert_null(vfm_loader_open(m, &wide, &err));
	assert_non_null(strstr(err.msg, "have 6 features, not 7"));
	vfm_plan_close(m);
	remake(1); /* every sample */
	assert_true(read_text2(&wanted, INT64_MAX) > 30);
	remake(0);
}

static void order_is_fixed(void **state)
{
	static const int threads[] = {1, 2, 5, 8}, prefetch[] = {1, 2, 7, 64};
	struct vfm_loader_opts o = {.threads = 1, .prefetch = 1};
	uint64_t want[512], got[512];
	int n = read_all(&o, want, false);

	(void)state;
	for (int i = 0; i < 16; i++) {
		o.threads = threads[i % 4];
		o.prefetch = prefetch[i / 4];
		assert_int_equal(read_all(&o, got, false), n);
		assert_memory_equal(got, want, (size_t)n * 8);
	}
}

static void resume_is_the_rest(void **state)
{
	struct vfm_loader_opts o = {0};
	uint64_t want[512], got[512];
	int n = read_all(&o, want, false);

	(void)state;
	assert_int_equal(n % BATCH, 0);
	for (int k = 0; k <= n / BATCH; k++) {
		o.first_step = k;
		assert_int_equal(read_all(&o, got, false), n - k * BATCH);
		assert_memory_equal(got, want + k * BATCH, (size_t)(n - k * BATCH) * 8);
	}
}

static void ranks_share_the_packs(void **state)
{
	struct vfm_loader_opts o = {0};
	uint64_t want[512], got[512];
	int n = read_all(&o, want, false);

	(void)state;
	for (int world = 2; world <= 5; world++) {
		int total = 0;

		for (int rank = 0; rank < world; rank++) {
			int k = 0, m;

			o.world = world;
			o.rank = rank;
			m = read_all(&o, got, false);
			total += m;
			for (int i = 0; i < n; i++)
				if (i % BATCH % world == rank)
					assert_true(got[k++] == want[i]);
			assert_int_equal(k, m);
		}
		assert_int_equal(total, n);
	}
}

static void holding_packs(void **state)
{
	struct vfm_loader_opts o = {.prefetch = 2};
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	struct vfm_loader *l = vfm_loader_open(m, &o, &err);
	struct vfm_pack *b[4];

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(vfm_loader_next(l, &b[i], &err), 1);
	assert_int_equal(vfm_loader_next(l, &b[3], &err), VFM_EUSAGE);
	vfm_loader_release(l, b[0]);
	assert_int_equal(vfm_loader_next(l, &b[3], &err), 1);
	check_pack(b[1], INT32_MAX);
	check_pack(b[3], INT32_MAX);
	vfm_loader_close(l); /* with packs held, and work under way */
	vfm_plan_close(m);
}

static void flip(const char *path, long at)
{
	FILE *f = fopen(path, "r+");
	int c;

	assert_non_null(f);
	fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
	c = fgetc(f);
	fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
	fputc(c ^ 1, f);
	fclose(f);
}

/* Reads until something is wrong. */
static int first_failure(const struct vfm_loader_opts *o, struct vfm_err *err)
{
	struct vfm_plan *m = vfm_plan_open(plan_path, err);
	struct vfm_loader *l = m ? vfm_loader_open(m, o, err) : NULL;
	struct vfm_pack *b;
	struct vfm_err again = {0};
	int rc = err->code;

	while (l && (rc = vfm_loader_next(l, &b, err)) == 1)
		vfm_loader_release(l, b);
	if (l && rc < 0) { /* and says it again */
		assert_int_equal(vfm_loader_next(l, &b, &again), rc);
		assert_string_equal(again.msg, err->msg);
	}
	vfm_loader_close(l);
	vfm_plan_close(m);
	return rc;
}

static void damage_is_named(void **state)
{
	struct vfm_loader_opts o = {0};
	struct vfm_err err = {0};
	char tar[96], index[96], *text, *p;
	size_t len;

	(void)state;
	snprintf(tar, sizeof(tar), "%s/000001.tar", data_dir);
	snprintf(index, sizeof(index), "%s/index.vfmi", data_dir);
	assert_int_equal(first_failure(&o, &err), 0);
	flip(tar, 200); /* in the first latent of shard 1 */
	assert_int_equal(first_failure(&o, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "set 'a', shard 1, index 0"));
	flip(tar, 200);
	flip(index, -1);
	assert_true(first_failure(&o, &err) < 0); /* another sha256 */
	flip(index, -1);
	assert_int_equal(vfm_read_file(plan_path, 1 << 20, &text, &len, &err), 0);
	p = strstr(text, "\"tokens\":");
	p = strstr(p, "[[0,");
	assert_non_null(p);
	p[4] = '9'; /* shard 9 */
	assert_int_equal(vfm_write_file(plan_path, text, len, &err), 0);
	assert_int_equal(first_failure(&o, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "shard 9"));
	free(text);
	make_plan();
	err.code = 0;
	assert_int_equal(first_failure(&o, &err), 0);
}

/* Writes the data again with a NaN in sample number n; checksums are right. */
/* Counts the texts of each name, which must be those that vfm_caption_choose chooses.  Returns the number of packs. */
static int count_texts(const struct vfm_loader_opts *o, uint64_t *digests, int count[3], int64_t *unlisted)
{
	static const char *const names[] = {"a", "b", "c"};
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	struct vfm_loader *l = vfm_loader_open(m, o, &err);
	struct vfm_pack *b;
	int n = 0, rc;
	bool none;

	assert_non_null(l);
	while ((rc = vfm_loader_next(l, &b, &err)) == 1) {
		for (int i = 0; i < b->n; i++) {
			int j = vfm_caption_choose(o->captions, 3, names, o->seed, (uint64_t)b->step, b->id[i], &none);
			uint64_t number = b->id[i] - 1000 + 1 + (uint64_t)j * DATASET_NEXT_TEXT;

			if (b->cu_text[i] == b->cu_text[i + 1])
				continue;
			for (int k = 0; k < DATASET_TEXT_DIM; k++)
				assert_true(b->text[(int64_t)b->cu_text[i] * DATASET_TEXT_DIM + k] ==
					dataset_value(number, k));
			count[j]++;
		}
		digests[n++] = digest(b);
		vfm_loader_release(l, b);
	}
	if (rc < 0)
		fail_msg("%s", err.msg);
	*unlisted = vfm_loader_stats(l).unlisted;
	vfm_loader_close(l);
	vfm_plan_close(m);
	return n;
}

/* The captions of a sample in a step do not depend on ranks and on resuming; other seeds choose others. */
static void captions_are_chosen(void **state)
{
	const struct vfm_name_weights w = {2, {{"a", 1}, {"b", 3}}}, typo = {1, {{"bb", 1}}};
	struct vfm_loader_opts o = {.captions = &w, .seed = 5};
	uint64_t one[512], half[512], other[512];
	int count[3] = {0}, again[3] = {0}, n, per, k;
	struct vfm_plan *m;
	struct vfm_err err = {0};
	int64_t unlisted;

	(void)state;
	dataset_texts = 3;
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	make_plan();
	n = count_texts(&o, one, count, &unlisted);
	assert_int_equal(unlisted, 0);
	assert_int_equal(count[2], 0);
	assert_in_range(count[1], 2 * count[0], 5 * count[0]);
	m = vfm_plan_open(plan_path, &err);
	per = vfm_plan_header(m)->batch;
	for (o.world = 2; o.rank < 2; o.rank++) {
		k = count_texts(&o, half, again, &unlisted);
		for (int i = 0, at = 0; i < n; i++)
			if (i % per % 2 == o.rank)
				assert_true(at < k && half[at++] == one[i]);
	}
	assert_memory_equal(count, again, sizeof(count));
	o = (struct vfm_loader_opts){.captions = &w, .seed = 5, .first_step = 3, .threads = 4};
	k = count_texts(&o, other, again, &unlisted);
	assert_int_equal(k, n - 3 * per);
	assert_memory_equal(other, one + 3 * per, (size_t)k * sizeof(*one));
	o.seed = 6;
	count_texts(&o, other, again, &unlisted);
	assert_memory_not_equal(other, one + 3 * per, (size_t)k * sizeof(*one));
	o.captions = &typo;
	assert_null(vfm_loader_open(m, &o, &err));
	assert_non_null(strstr(err.msg, "has the caption 'bb'"));
	vfm_plan_close(m);

	dataset_texts = 1;
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	make_plan();
}

static void make_data_with_nan(uint64_t n)
{
	struct vfm_err err = {0};

	dataset_nan = n;
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
	dataset_nan = UINT64_MAX;
	make_plan();
}

static void nan_is_damage(void **state)
{
	struct vfm_loader_opts cut = {.text_len = 1}, o = {0};
	struct vfm_err err = {0};

	(void)state;
	make_data_with_nan(18); /* the text of 17 and the latent of 18 */
	assert_int_equal(first_failure(&o, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "set 'a', shard 1, index "));
	assert_true(strstr(err.msg, "latent of sample 2 of shard 1: element [0,0,0,7] is NaN") ||
		strstr(err.msg, "text of sample 1 of shard 1: element [0,7] is NaN"));
	make_data_with_nan(61); /* the text of 60; there is no sample 61 */
	assert_int_equal(first_failure(&o, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "text of sample 12 of shard 3: element [0,7] is NaN"));
	assert_int_equal(first_failure(&cut, &err), VFM_EINPUT);
	make_data_with_nan(UINT64_MAX);
	assert_int_equal(first_failure(&o, &err), 0);
}

static void other_encoders_are_refused(void **state)
{
	struct vfm_loader_opts o = {0};
	struct vfm_err err = {0};
	static const char was[] = "\"tokenizer\":{\"name\":\"wavelet:4\"";
	static const struct {
		const char *is, *says;
	} plans[] = {
		{"\"tokenizer\":{\"name\":\"wavelet:5\"",
			"/data/index.vfmi' has tokenizer 'wavelet:4 1', the plan has 'wavelet:5 1'"},
		{"\"ignored\":{\"name\":\"wavelet:4\"",
			"/data/index.vfmi' has tokenizer 'wavelet:4 1', the plan names none (encoders): pack "
			"again"},
	};
	char *text, *at, *edited;
	size_t len;

	(void)state;
	assert_int_equal(vfm_read_file(plan_path, 1 << 20, &text, &len, &err), 0);
	at = strstr(text, was);
	assert_non_null(at);
	for (int i = 0; i < 2; i++) {
		edited = vfm_strfmt("%.*s%s%s", (int)(at - text), text, plans[i].is, at + strlen(was));
		assert_int_equal(vfm_write_file(plan_path, edited, strlen(edited), &err), 0);
		assert_int_equal(first_failure(&o, &err), VFM_EUSAGE);
		assert_non_null(strstr(err.msg, plans[i].says));
		free(edited);
	}
	free(text);
	make_plan();
}

/* ---- damaged samples ---- */

struct place {
	int64_t step, pack, slot;
};

/* Returns the id of the sample that must stand for the damaged one at a place: the next with as many tokens, from the
 * place to the end of its step, then the beginning of the step, then the following steps. */
static uint64_t expect_other(struct vfm_plan *m, struct place at, int32_t shard, int64_t index)
{
	int64_t steps = vfm_plan_header(m)->steps;
	struct vfm_plan_step s = {0};
	struct vfm_err err;
	int32_t tokens = 0;
	uint64_t id = 0;

	for (int64_t k = 0; k <= steps && !id; k++) {
		struct vfm_plan_sample list[4096] = {0}, *c;
		int n = 0, first = 0;

		assert_int_equal(vfm_plan_step(m, (at.step + k) % steps, &s, &err), 0);
		for (int32_t p = 0; p < s.n_packs; p++)
			for (int32_t i = 0; i < s.packs[p].n_samples; i++) {
				if (k == 0 && p == at.pack && i == at.slot)
					first = n;
				list[n++] = s.packs[p].samples[i];
			}
		tokens = k == 0 ? list[first].tokens : tokens;
		for (int i = 0; i < n && !id; i++) {
			c = &list[(first + i) % n];
			if (c->tokens == tokens && !(c->shard == shard && c->index == index))
				id = 1000 + (uint64_t)c->shard * 16 + (uint64_t)c->index;
		}
	}
	vfm_plan_step_release(&s);
	return id;
}

/* Reads all packs and compares each with the plan, in which one sample is damaged. */
static int64_t check_replaced(const struct vfm_loader_opts *o, int32_t shard, int64_t index)
{
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	struct vfm_loader *l = vfm_loader_open(m, o, &err);
	struct vfm_plan_step s = {0};
	struct vfm_pack *b;
	int64_t replaced = 0;
	int rc;

	assert_non_null(l);
	while ((rc = vfm_loader_next(l, &b, &err)) == 1) {
		const struct vfm_plan_pack *p;

		check_pack(b, INT32_MAX);
		assert_int_equal(vfm_plan_step(m, b->step, &s, &err), 0);
		p = &s.packs[b->index];
		assert_int_equal(b->tokens, p->tokens);
		for (int i = 0; i < b->n; i++) {
			bool bad = p->samples[i].shard == shard && p->samples[i].index == index;
			uint64_t id = 1000 + (uint64_t)p->samples[i].shard * 16 + (uint64_t)p->samples[i].index;

			if (bad)
				id = expect_other(m, (struct place){b->step, b->index, i}, shard, index);
			assert_true(b->id[i] == id);
			replaced += bad;
		}
		vfm_loader_release(l, b);
	}
	assert_int_equal(rc, 0);
	assert_int_equal(vfm_loader_stats(l).replaced, replaced);
	vfm_plan_step_release(&s);
	vfm_loader_close(l);
	vfm_plan_close(m);
	return replaced;
}

static void damage_is_replaced(void **state)
{
	struct vfm_loader_opts o = {.max_damaged = 0.01}, later = {.max_damaged = 0.01, .first_step = 4, .threads = 4},
			       strict = {0};
	uint64_t all[512], rest[512];
	struct vfm_err err = {0};
	char tar[96], index[96];
	int n, k;

	(void)state;
	snprintf(tar, sizeof(tar), "%s/000001.tar", data_dir);
	snprintf(index, sizeof(index), "%s/index.vfmi", data_dir);
	flip(tar, 200);                             /* in the first latent of shard 1 */
	assert_true(check_replaced(&o, 1, 0) >= 2); /* a third time, where the last step is filled */
	n = read_all(&o, all, true);
	k = read_all(&later, rest, true);
	assert_int_equal(k, n - 4 * BATCH);
	assert_memory_equal(rest, all + 4 * BATCH, (size_t)k * sizeof(*all));
	flip(tar, 200);
	flip(index, 128 + 17 * 128 + 60); /* a block of the index is that of half of the samples */
	assert_int_equal(first_failure(&strict, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "index.vfmi"));
	o.max_damaged = 1;
	assert_int_equal(read_all(&o, all, true), n);
	flip(index, 128 + 17 * 128 + 60);
}

/* A damaged second text replaces its sample if the model reads it.  The other sample may have none. */
static void damaged_text2(void **state)
{
	struct vfm_loader_opts unread = {0}, o = {.max_damaged = 0.01, .text2_dim = DATASET_TEXT2_DIM},
			       strict = {.text2_dim = DATASET_TEXT2_DIM};
	struct vfm_err err = {0};
	struct vfm_index_record r;
	struct vfm_index_text t;
	struct vfm_index *ix;
	uint64_t d[512];
	char tar[96];

	(void)state;
	remake(2);
	snprintf(tar, sizeof(tar), "%s/000001.tar", data_dir);
	assert_int_equal(vfm_index_open(&ix, data_dir, &err), 0);
	assert_int_equal(vfm_index_get(ix, 1, 0, &r, &err), 0);
	assert_int_equal(vfm_index_extra(ix, &r, VFM_EXTRA_TEXT2, &t, &err), 0);
	vfm_index_close(ix);
	flip(tar, (long)t.offset + t.header + 3);
	assert_true(read_all(&unread, d, true) >= 30);
	assert_int_equal(first_failure(&strict, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "second text of sample 0 of shard 1: wrong checksum"));
	assert_true(check_replaced(&o, 1, 0) >= 2);
	assert_true(read_text2(&o, INT64_MAX) > 10);
	remake(0);
}

/* A shard that is cut off is 16 damaged samples, twice. */
static void too_much_damage_is_an_error(void **state)
{
	struct vfm_loader_opts o = {.max_damaged = 0.01};
	uint64_t d[512];
	struct vfm_err err = {0};
	struct stat st;
	char tar[96];

	(void)state;
	snprintf(tar, sizeof(tar), "%s/000001.tar", data_dir);
	assert_int_equal(stat(tar, &st), 0);
	assert_int_equal(truncate(tar, st.st_size - 1), 0);
	assert_int_equal(first_failure(&o, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "damaged, more than a share of 0.01 (data.max_damaged): set 'a' shard 1"));
	o.max_damaged = 1;
	assert_true(read_all(&o, d, true) >= 30);
	assert_int_equal(dataset_make(data_dir, dims, 4, N_A, 16, &err), 0);
}

/* ---- ranks that share packs ---- */

enum { GROUP = 3 };

struct report { /* of a rank, in memory that the test shares with it */
	int n, rc;
	uint64_t digest[512];
	int64_t file_bytes;
	char why[VFM_ERR_MAX];
};

/* Reads all packs as a rank of a group.  Rank `slow` lags behind. */
static void read_as_rank(
	const struct vfm_loader_group *g, const struct vfm_loader_opts *opts, int slow, struct report *r)
{
	struct vfm_loader_opts o = *opts;
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	struct vfm_loader *l;
	struct vfm_pack *b;

	o.group = g;
	o.part = o.n_parts ? g->rank % o.n_parts : 0;
	l = m ? vfm_loader_open(m, &o, &err) : NULL;
	r->rc = err.code;
	while (l && (r->rc = vfm_loader_next(l, &b, &err)) == 1) {
		if (g->rank == slow && r->n % 7 == 0)
			usleep(3000);
		r->digest[r->n++] = digest(b);
		vfm_loader_release(l, b);
	}
	if (l)
		r->file_bytes = vfm_loader_stats(l).file_bytes;
	snprintf(r->why, sizeof(r->why), "%s", err.msg);
	vfm_loader_close(l);
	vfm_plan_close(m);
}

static struct report *read_as_group(const struct vfm_loader_opts *o, int slow)
{
	struct report *r = mmap(NULL, GROUP * sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct vfm_loader_group g = {.size = GROUP, .extra_depth = 2};
	struct vfm_shared mem;
	struct vfm_err err;
	pid_t pid[GROUP];

	assert_true(r != MAP_FAILED);
	assert_int_equal(vfm_shared_make(&mem, "test", &err), 0);
	g.mem = &mem;
	g.at = vfm_shared_reserve(&mem, vfm_loader_group_bytes());
	for (g.rank = 0; g.rank < GROUP; g.rank++) {
		pid[g.rank] = fork();
		assert_true(pid[g.rank] >= 0);
		if (pid[g.rank] == 0) {
			read_as_rank(&g, o, slow, &r[g.rank]);
			_exit(0);
		}
	}
	for (int i = 0; i < GROUP; i++) {
		int status;

		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		assert_int_equal(status, 0);
	}
	vfm_shared_close(&mem);
	return r;
}

/* Every rank gets all packs, and together they read the files once. */
static void a_group_reads_once(void **state)
{
	struct vfm_loader_opts o = {.max_damaged = 0.01, .prefetch = 2, .text2_dim = DATASET_TEXT2_DIM};
	uint64_t alone[512];
	struct vfm_err err = {0};
	struct report *r;
	char tar[96];
	int n;

	(void)state;
	remake(3);
	snprintf(tar, sizeof(tar), "%s/000001.tar", data_dir);
	for (int damaged = 0; damaged < 2; damaged++) {
		struct vfm_plan *m = vfm_plan_open(plan_path, &err);
		struct vfm_loader *l = vfm_loader_open(m, &o, &err);
		struct vfm_pack *b;
		int64_t bytes = 0, read = 0;

		while (vfm_loader_next(l, &b, &err) == 1)
			vfm_loader_release(l, b);
		read = vfm_loader_stats(l).file_bytes;
		vfm_loader_close(l);
		vfm_plan_close(m);
		n = read_all(&o, alone, true);
		r = read_as_group(&o, damaged);
		for (int i = 0; i < GROUP; i++) {
			assert_int_equal(r[i].rc, 0);
			assert_int_equal(r[i].n, n);
			assert_memory_equal(r[i].digest, alone, (size_t)n * sizeof(*alone));
			assert_true(r[i].file_bytes < read / 2);
			bytes += r[i].file_bytes;
		}
		assert_int_equal(bytes, read);
		munmap(r, GROUP * sizeof(*r));
		flip(tar, 200);
	}
	o.max_damaged = 0;
	flip(tar, 200);
	r = read_as_group(&o, -1);
	for (int i = 0; i < GROUP; i++) {
		assert_int_equal(r[i].rc, VFM_EINPUT);
		assert_string_equal(r[i].why, r[0].why);
		assert_non_null(strstr(r[i].why, "set 'a', shard 1, index 0"));
	}
	munmap(r, GROUP * sizeof(*r));
	remake(0);
}

/* The packs that a cp rank gets are those that have its parts, or none where it is not among the ranks of the pack. */
static void check_parts(const struct vfm_loader_opts *o)
{
	struct vfm_plan_step s = {0};
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	int32_t batch = vfm_plan_header(m)->batch, every = o->world * o->n_parts;
	struct vfm_loader *l = vfm_loader_open(m, o, &err);
	struct vfm_pack *b;
	int64_t k = 0;

	assert_non_null(l);
	assert_int_equal(vfm_loader_packs_per_step(l), batch / every);
	while (vfm_loader_next(l, &b, &err) == 1) {
		int64_t step = o->first_step + k * every / batch;
		int64_t part = k++ * every % batch + o->rank * o->n_parts + o->part;
		const struct vfm_plan_pack *p;

		assert_int_equal(vfm_plan_step(m, step, &s, &err), 0);
		p = vfm_plan_pack_of(&s, part);
		assert_int_equal(b->step, step);
		assert_int_equal(b->step_tokens, s.tokens);
		if (part - p->pack < o->n_parts) {
			assert_int_equal(b->index, p->pack);
			assert_int_equal(b->n, p->n_samples);
			assert_int_equal(b->cp, p->cp < o->n_parts ? p->cp : o->n_parts);
		} else {
			assert_int_equal(b->n, 0);
		}
		vfm_loader_release(l, b);
	}
	assert_int_equal(k, (vfm_plan_header(m)->steps - o->first_step) * batch / every);
	vfm_loader_close(l);
	vfm_plan_close(m);
	vfm_plan_step_release(&s);
}

/* The turn of a pack: any function of step and pack. */
static int turn_at(const void *ctx, int64_t step, int64_t pack)
{
	uint64_t x = (uint64_t)step * 31 + (uint64_t)pack * 7 + *(const uint64_t *)ctx;

	return (int)(x * UINT64_C(0x9e3779b97f4a7c15) >> 62 & 1);
}

/* The packs of a turn come before those of the next, dealt out to the ranks, with the same content as without turns. */
static void check_turns(int32_t world, int32_t rank, uint64_t seed, int64_t first_step)
{
	struct vfm_loader_opts plain = {.first_step = first_step}, o = plain;
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);
	int32_t batch = vfm_plan_header(m)->batch;
	struct vfm_loader *all = vfm_loader_open(m, &plain, &err), *l;
	struct vfm_pack *b;

	o.world = world;
	o.rank = rank;
	o.prefetch = 1 + (int32_t)(seed % 5);
	o.turn_of = turn_at;
	o.turn_ctx = &seed;
	l = vfm_loader_open(m, &o, &err);
	assert_non_null(l);
	for (int64_t step = first_step; step < vfm_plan_header(m)->steps; step++) {
		uint64_t want[64];
		int64_t tokens[2] = {0}, n[2] = {0}, order[2][64];

		for (int64_t p = 0; p < batch; p++) {
			int turn = turn_at(&seed, step, p);

			assert_int_equal(vfm_loader_next(all, &b, &err), 1);
			b->step_tokens = 0;
			want[p] = digest(b);
			tokens[turn] += b->tokens;
			order[turn][n[turn]++] = p;
			vfm_loader_release(all, b);
		}
		for (int turn = 0; turn < 2; turn++)
			for (int64_t at = rank; at < (n[turn] + world - 1) / world * world; at += world) {
				assert_int_equal(vfm_loader_next(l, &b, &err), 1);
				assert_int_equal(b->step, step);
				assert_int_equal(b->step_tokens, tokens[turn]);
				b->step_tokens = 0;
				if (at < n[turn])
					assert_int_equal(digest(b), want[order[turn][at]]);
				else
					assert_int_equal(b->n + b->tokens + b->text_tokens, 0);
				vfm_loader_release(l, b);
			}
	}
	assert_int_equal(vfm_loader_next(l, &b, &err), 0);
	vfm_loader_close(l);
	vfm_loader_close(all);
	vfm_plan_close(m);
}

static void a_step_is_divided_into_turns(void **state)
{
	struct vfm_packing_opts po = {
		.context = 20, .batch = 12, .epochs = 2, .seed = 3, .cost = vfm_pack_cost_default()};
	struct vfm_err err = {0};

	(void)state;
	assert_int_equal(dataset_plan(plan_path, data_dir, &po, &err), 0);
	for (uint64_t seed = 0; seed < 4; seed++)
		for (int32_t world = 1; world <= 5; world++)
			for (int32_t rank = 0; rank < world; rank++)
				check_turns(world, rank, seed, (int64_t)seed % 2);
}

static void cp_ranks_get_their_packs(void **state)
{
	struct vfm_packing_opts po = {
		.context = 20, .cp = 4, .batch = 8, .epochs = 2, .seed = 3, .cost = vfm_pack_cost_default()};
	struct vfm_loader_opts o = {.n_parts = 2, .world = 2, .rank = 1, .prefetch = 2};
	uint64_t alone[2][512];
	struct vfm_err err = {0};
	struct vfm_plan *m;
	struct report *r;

	(void)state;
	assert_int_equal(dataset_plan(plan_path, data_dir, &po, &err), 0);
	for (int c = 0; c < 4; c++)
		for (int world = 1; world << c <= 8; world *= 2)
			for (int rank = 0; rank < world; rank++)
				for (int part = 0; part < 1 << c; part++)
					check_parts(&(struct vfm_loader_opts){.n_parts = 1 << c,
						.part = part,
						.world = world,
						.rank = rank,
						.first_step = part % 2,
						.prefetch = 1 + rank});
	for (int slow = -1; slow < 2; slow++) {
		int n = read_all(&o, alone[0], false);

		o.part = 1;
		assert_int_equal(read_all(&o, alone[1], false), n);
		o.part = 0;
		r = read_as_group(&o, slow);
		for (int i = 0; i < GROUP; i++) {
			assert_int_equal(r[i].rc, 0);
			assert_int_equal(r[i].n, n);
			assert_memory_equal(r[i].digest, alone[i % 2], (size_t)n * sizeof(uint64_t));
		}
		munmap(r, GROUP * sizeof(*r));
	}
	o.n_parts = 3;
	o.world = 1;
	o.rank = 0;
	m = vfm_plan_open(plan_path, &err);
	assert_null(vfm_loader_open(m, &o, &err));
	vfm_plan_close(m);
	make_plan();
}

static void options_are_checked(void **state)
{
	static const struct vfm_loader_opts bad[] = {{.rank = 1}, {.rank = -1}, {.world = -1}, {.first_step = -1},
		{.first_step = 1000}, {.threads = -1}, {.prefetch = 100000}};
	struct vfm_err err = {0};
	struct vfm_plan *m = vfm_plan_open(plan_path, &err);

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_null(vfm_loader_open(m, &bad[i], &err));
	vfm_plan_close(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(patchify), cmocka_unit_test(contents),
		cmocka_unit_test(bf16_latents), cmocka_unit_test(extra_arrays), cmocka_unit_test(second_texts),
		cmocka_unit_test(text_len), cmocka_unit_test(order_is_fixed), cmocka_unit_test(resume_is_the_rest),
		cmocka_unit_test(ranks_share_the_packs), cmocka_unit_test(holding_packs),
		cmocka_unit_test(captions_are_chosen), cmocka_unit_test(damage_is_named),
		cmocka_unit_test(nan_is_damage), cmocka_unit_test(other_encoders_are_refused),
		cmocka_unit_test(damage_is_replaced), cmocka_unit_test(damaged_text2),
		cmocka_unit_test(too_much_damage_is_an_error), cmocka_unit_test(a_step_is_divided_into_turns),
		cmocka_unit_test(a_group_reads_once), cmocka_unit_test(cp_ranks_get_their_packs),
		cmocka_unit_test(options_are_checked)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
