/* dataset.h - a small dataset on disk for the tests of packing and loading: shards that hold
 * nothing but payloads (the index does not read tar headers), with known contents. */
#ifndef TESTS_UNIT_DATASET_H
#define TESTS_UNIT_DATASET_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/dataset/index.h"
#include "data/plan/pack.h"
#include "io/file.h"
#include "io/hash.h"
#include "spec/model/dtype.h"

#define DATASET_C        4
#define DATASET_TEXT_DIM 8
#ifndef DATASET_SCALE
#define DATASET_SCALE 1.0f /* or another power of two */
#endif

/* Sample number dataset_nan (text of sample dataset_nan - 1) has a NaN as element 7. */
static uint64_t dataset_nan = UINT64_MAX;

/* Element k of the latent of sample number n, or of the text of sample n - 1; exact in half precision. */
static inline float dataset_value(uint64_t n, int64_t k)
{
	if (n == dataset_nan && k == 7)
		return __builtin_nanf("");
	return (float)((n * 31 + (uint64_t)k * 7) % 2048) * DATASET_SCALE;
}

/* Every so many-th sample, from the first, has latents in bfloat16, all others in float16; 0: none. */
static int dataset_bf16_every;

static inline bool dataset_is_bf16(uint64_t n)
{
	return dataset_bf16_every && n % (uint64_t)dataset_bf16_every == 0;
}

/* A sample with text has so many, with the names "a", "b", …; one has no name.  Text j of sample n has the elements of
 * number n + 1 + j * DATASET_NEXT_TEXT. */
static int dataset_texts = 1;
#define DATASET_TEXTS_MAX 4
#define DATASET_ENTRIES   (DATASET_TEXTS_MAX + VFM_EXTRAS) /* of a sample */
#define DATASET_NEXT_TEXT 7919

/* Every sample has extra arrays: the latent itself as the condition, and image rows with the elements of number n + 5.
 */
static bool dataset_extras;
#define DATASET_IMAGE_LEN 3
#define DATASET_IMAGE_DIM 5

/* Every so many-th sample, from the first, has a second text with the elements of number n + 9; 0: none. */
static int dataset_text2_every;
#define DATASET_TEXT2_DIM 6

static inline int64_t dataset_text2_rows(uint64_t n)
{
	return dataset_text2_every && n % (uint64_t)dataset_text2_every == 0 ? 1 + (int64_t)n / 2 % 4 : 0;
}

struct dataset_dims {
	uint16_t t, h, w, text_len;
};

static inline uint32_t dataset_array(struct vfm_buf *b, enum vfm_npy_type type, int ndim, const int64_t *shape,
	int64_t count, uint64_t n, uint16_t *header)
{
	char head[VFM_NPY_HEADER_MAX];
	size_t start = b->len;

	*header = (uint16_t)vfm_npy_header(head, type, ndim, shape);
	vfm_buf_add(b, head, *header);
	for (int64_t k = 0; k < count; k++) {
		float f = dataset_value(n, k);
		uint16_t h = type == VFM_NPY_BF16 ? vfm_f32_to_bf16(f) : vfm_f32_to_f16(f);

		vfm_buf_add(b, &h, 2);
	}
	return (uint32_t)(b->len - start);
}

static inline void dataset_sample(struct vfm_buf *b, struct vfm_index_record *r, struct vfm_index_text *t,
	const struct dataset_dims *d, uint64_t n)
{
	int64_t ls[4] = {DATASET_C, d->t, d->h, d->w}, ts[2] = {d->text_len, DATASET_TEXT_DIM};

	*r = (struct vfm_index_record){.id = 1000 + n,
		.sample_offset = b->len,
		.latent_offset = b->len,
		.c = DATASET_C,
		.t = d->t,
		.h = d->h,
		.w = d->w,
		.latent_dtype = dataset_is_bf16(n) ? VFM_NPY_BF16 : VFM_NPY_F16,
		.frames = 1,
		.flags = VFM_REC_IMAGE};
	r->latent_bytes =
		dataset_array(b, r->latent_dtype, 4, ls, DATASET_C * ls[1] * ls[2] * ls[3], n, &r->latent_header);
	r->latent_crc = vfm_crc32c(0, b->data + r->latent_offset, r->latent_bytes);
	for (int j = 0; d->text_len && j < dataset_texts; j++, t++) {
		r->n_texts++;
		r->text_dim = DATASET_TEXT_DIM;
		*t = (struct vfm_index_text){.offset = b->len, .rows = d->text_len, .dtype = VFM_NPY_F16};
		t->bytes = dataset_array(
			b, t->dtype, 2, ts, ts[0] * ts[1], n + 1 + (uint64_t)j * DATASET_NEXT_TEXT, &t->header);
		t->data_crc = vfm_crc32c(0, b->data + t->offset, t->bytes);
	}
	if (dataset_extras) {
		const int64_t rows[2] = {DATASET_IMAGE_LEN, DATASET_IMAGE_DIM};

		*t++ = (struct vfm_index_text){.offset = r->latent_offset,
			.bytes = r->latent_bytes,
			.data_crc = r->latent_crc,
			.header = r->latent_header,
			.rows = r->c,
			.dtype = r->latent_dtype};
		*t = (struct vfm_index_text){
			.offset = b->len, .rows = DATASET_IMAGE_LEN, .width = DATASET_IMAGE_DIM, .dtype = VFM_NPY_F16};
		t->bytes = dataset_array(b, t->dtype, 2, rows, rows[0] * rows[1], n + 5, &t->header);
		t->data_crc = vfm_crc32c(0, b->data + t->offset, t->bytes);
		r->flags |= (uint16_t)(vfm_extra_kinds[VFM_EXTRA_COND].flag | vfm_extra_kinds[VFM_EXTRA_IMAGE].flag);
		t++;
	}
	if (dataset_text2_rows(n)) {
		const int64_t rows[2] = {dataset_text2_rows(n), DATASET_TEXT2_DIM};

		*t = (struct vfm_index_text){
			.offset = b->len, .rows = (uint16_t)rows[0], .width = DATASET_TEXT2_DIM, .dtype = VFM_NPY_F16};
		t->bytes = dataset_array(b, t->dtype, 2, rows, rows[0] * rows[1], n + 9, &t->header);
		t->data_crc = vfm_crc32c(0, b->data + t->offset, t->bytes);
		r->flags |= (uint16_t)vfm_extra_kinds[VFM_EXTRA_TEXT2].flag;
	}
	r->json_offset = b->len;
	vfm_buf_adds(b, "{}");
	r->json_bytes = 2;
	r->json_crc = vfm_crc32c(0, "{}", 2);
	r->sample_bytes = b->len - r->sample_offset;
}

/* n samples of the sizes in dims (used in turn), `per` a shard.  0, or negative with err. */
static inline int dataset_make(
	const char *dir, const struct dataset_dims *dims, int n_dims, int64_t n, int64_t per, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", dir, VFM_INDEX_NAME);
	const struct vfm_encoder_ids encoder_ids = {
		.tokenizer = {.name = "wavelet:4", .version = "1"}, .text = {.name = "bytes:8", .version = "1"}};
	static const char *const letters[DATASET_TEXTS_MAX] = {"a", "b", "c", "d"};
	struct vfm_index_writer *w;
	int rc;

	TRY_OUT(vfm_mkdir_p(dir, err));
	TRY_OUT(vfm_index_writer_open(&w, path, err));
	for (int64_t s = 0; s * per < n; s++) {
		int64_t count = n - s * per < per ? n - s * per : per;
		struct vfm_index_record *r = vfm_calloc((size_t)count, sizeof(*r));
		struct vfm_index_text *t = vfm_calloc((size_t)count * DATASET_ENTRIES, sizeof(*t));
		char name[32], *tar;
		struct vfm_buf b = {0};

		for (int64_t i = 0; i < count; i++)
			dataset_sample(&b, &r[i], &t[i * DATASET_ENTRIES], &dims[(s * per + i) % n_dims],
				(uint64_t)(s * per + i));
		snprintf(name, sizeof(name), "%06lld.tar", (long long)s);
		tar = vfm_strfmt("%s/%s", dir, name);
		rc = vfm_write_file(tar, b.data, b.len, err);
		if (rc >= 0)
			rc = vfm_index_writer_shard(w, name, b.len, err);
		for (int64_t i = 0; rc >= 0 && i < count; i++)
			rc = vfm_index_writer_add(w, &r[i], &t[i * DATASET_ENTRIES],
				dataset_texts == 1 ? &(const char *){""} : letters, err);
		vfm_buf_release(&b);
		free(tar);
		free(r);
		free(t);
		if (rc < 0) {
			vfm_index_writer_abort(w);
			goto out;
		}
	}
	rc = vfm_index_writer_commit(w, &encoder_ids, err);
out:
	free(path);
	return rc;
}

/* A plan over the data in `dir`, patches of 1 x 2 x 2, packed as o says. */
static inline int dataset_plan(const char *path, const char *dir, const struct vfm_packing_opts *o, struct vfm_err *err)
{
	struct vfm_blend_set set = {.name = "a", .dir = dir};
	struct vfm_plan_set ms = {.name = "a", .dir_given = "data", .weight = 1};
	struct vfm_plan_header h = {
		.context = o->context, .batch = o->batch, .cp = o->cp, .patch = {1, 2, 2}, .n_sets = 1, .sets = &ms};
	struct vfm_packing p = {0};
	struct vfm_blend *b;
	FILE *f;
	int rc;

	TRY(vfm_blend_scan(&set, h.patch, o->context * (o->cp ? o->cp : 1), 0, err));
	b = vfm_blend_new(&set, 1, 3, err);
	if (!b)
		return err->code;
	h.latent_channels = set.channels;
	h.text_dim = set.text_dim;
	h.cond_channels = set.cond_channels;
	h.image_len = set.image_len;
	h.image_dim = set.image_dim;
	h.text2_dim = set.text2_dim;
	h.encoder_ids = vfm_index_info(set.ix)->encoder_ids;
	ms.records = set.records;
	memcpy(ms.index_sha256, set.sha256, VFM_SHA256_HEX);
	f = fopen(path, "w");
	rc = f ? vfm_packing_write(&p, b, o, &set, &h, VFM_PLAN_JSONL, f, err)
	       : vfm_fail_errno(err, VFM_EENV, "%s", path);
	if (f && fclose(f) != 0)
		rc = VFM_EENV;
	vfm_packing_release(&p);
	vfm_blend_free(b);
	vfm_blend_set_release(&set);
	return rc;
}

#endif
