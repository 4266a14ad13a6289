#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/dataset/index.h"
#include "data/record/sample_key.h"
#include "io/file.h"
#include "io/hash.h"
#include "spec/model/dtype.h"

/* Three "tars" that hold nothing but payloads: the index does not read tar headers. */
#define N_SHARDS 3
#define PER      5

static char dir[] = "/tmp/vfm_index_XXXXXX", path[64];

static enum vfm_npy_type type_of(int i)
{
	static const enum vfm_npy_type types[] = {VFM_NPY_F32, VFM_NPY_F16, VFM_NPY_BF16};

	return types[i % 3];
}

/* Sample i has the first n_texts(i) of these, but the first alone has no name. */
static const char *const several[] = {"long", "short"};

static int n_texts(int i)
{
	return i == 3 ? 0 : 2 - i % 2;
}

static float value(int s, int i, int k)
{
	if (type_of(i) == VFM_NPY_BF16) /* exact in 8 bits, and beyond the range of float16 */
		return (float)(s + i + k % 100) * 0x1p100f;
	return (float)(s * 500 + i * 100 + k % 100);
}

static uint32_t array(char *p, enum vfm_npy_type t, int ndim, const int64_t *shape, int n, int s, int i, uint16_t *head)
{
	float f[512];
	uint16_t half[512];

	*head = (uint16_t)vfm_npy_header(p, t, ndim, shape);
	for (int k = 0; k < n; k++)
		f[k] = value(s, i, k);
	if (t != VFM_NPY_F32)
		vfm_dtype_convert(vfm_dtype_of_npy(t), half, VFM_F32, f, (size_t)n);
	/* at any address */
	memcpy(p + *head, t == VFM_NPY_F32 ? (void *)f : half, (size_t)n * vfm_npy_type_size(t));
	return *head + (uint32_t)n * (uint32_t)vfm_npy_type_size(t);
}

static int read_latent_f32(struct vfm_index *ix, const struct vfm_index_record *r, float *f, struct vfm_err *err)
{
	uint16_t half[512];
	bool is_half = r->latent_dtype != VFM_NPY_F32;
	int rc = vfm_index_read_latent(ix, r, is_half ? (void *)half : f, NULL, err);

	for (uint64_t k = 0; rc == 0 && is_half && k < vfm_record_latent_count(r); k++)
		f[k] = r->latent_dtype == VFM_NPY_F16 ? vfm_f16_to_f32(half[k]) : vfm_bf16_to_f32(half[k]);
	return rc;
}

static int setup(void **state)
{
	const struct vfm_encoder_ids encoder_ids = {
		.tokenizer = {.name = "wavelet:4", .version = "1"}, .text = {.name = "bytes:7", .version = "3"}};
	struct vfm_index_writer *w;
	struct vfm_err err = {0};

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/index.vfmi", dir);
	assert_int_equal(vfm_index_writer_open(&w, path, &err), 0);
	for (int s = 0; s < N_SHARDS; s++) {
		char *tar = calloc(1, 65536), name[16], file[96];
		struct vfm_index_record r[PER];
		struct vfm_index_text t[PER][2] = {0};
		uint32_t at = 0;

		for (int i = 0; i < PER; i++) {
			int64_t ls[4] = {4, 1 + i % 2, 6, 4}, ts[2] = {3, 7};
			int n = (int)(4 * ls[1] * 24);

			r[i] = (struct vfm_index_record){.id = (uint64_t)s * 77 + (uint64_t)i,
				.sample_offset = at,
				.latent_offset = at,
				.c = 4,
				.t = (uint16_t)ls[1],
				.h = 6,
				.w = 4,
				.n_texts = (uint32_t)n_texts(i),
				.text_dim = n_texts(i) ? 7 : 0,
				.latent_dtype = (uint8_t)type_of(i),
				.frames = 16,
				.fps_milli = 8000};
			r[i].latent_bytes = array(tar + at, r[i].latent_dtype, 4, ls, n, s, i, &r[i].latent_header);
			r[i].latent_crc = vfm_crc32c(0, tar + at, r[i].latent_bytes);
			at += r[i].latent_bytes;
			for (int k = 0; k < n_texts(i); k++) {
				t[i][k] = (struct vfm_index_text){
					.offset = at, .rows = (uint16_t)(3 + k), .dtype = (uint8_t)type_of(i)};
				ts[0] = 3 + k;
				t[i][k].bytes =
					array(tar + at, type_of(i), 2, ts, (int)ts[0] * 7, s, i, &t[i][k].header);
				t[i][k].data_crc = vfm_crc32c(0, tar + at, t[i][k].bytes);
				at += t[i][k].bytes;
			}
			r[i].json_offset = at;
			r[i].json_bytes = (uint32_t)sprintf(tar + at, "{\"i\":%d}", i);
			r[i].json_crc = vfm_crc32c(0, tar + at, r[i].json_bytes);
			at += r[i].json_bytes;
			r[i].sample_bytes = at - r[i].sample_offset;
		}
		snprintf(name, sizeof(name), "%06d.tar", s);
		snprintf(file, sizeof(file), "%s/%s", dir, name);
		assert_int_equal(vfm_write_file(file, tar, at, &err), 0);
		assert_int_equal(vfm_index_writer_shard(w, name, at, &err), 0);
		for (int i = 0; i < PER; i++)
			assert_int_equal(vfm_index_writer_add(
						 w, &r[i], t[i], n_texts(i) == 1 ? &(const char *){""} : several, &err),
				0);
		free(tar);
	}
	assert_int_equal(access(path, F_OK), -1); /* nothing is seen before commit */
	assert_int_equal(vfm_index_writer_commit(w, &encoder_ids, &err), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return vfm_rm_rf(dir, NULL);
}

static void reads_back(void **state)
{
	struct vfm_err err = {0};
	struct vfm_index_text t;
	struct vfm_index *ix;
	struct vfm_index_record r, q;
	float f[512];

	(void)state;
	assert_int_equal(vfm_index_open(&ix, dir, &err), 0);
	assert_int_equal(vfm_index_info(ix)->n_records, N_SHARDS * PER);
	assert_int_equal(vfm_index_info(ix)->n_shards, N_SHARDS);
	assert_string_equal(vfm_index_info(ix)->encoder_ids.tokenizer.name, "wavelet:4");
	assert_string_equal(vfm_index_info(ix)->encoder_ids.text.name, "bytes:7");
	assert_string_equal(vfm_index_info(ix)->encoder_ids.text.version, "3");
	for (int s = N_SHARDS - 1; s >= 0; s--) {
		for (int i = 0; i < PER; i++) {
			assert_int_equal(vfm_index_get(ix, (uint32_t)s, (uint32_t)i, &r, &err), 0);
			assert_int_equal(vfm_index_at(ix, (uint64_t)(s * PER + i), &q, &err), 0);
			assert_memory_equal(&r, &q, sizeof(r));
			assert_int_equal(r.id, s * 77 + i);
			assert_int_equal(read_latent_f32(ix, &r, f, &err), 0);
			for (uint64_t k = 0; k < vfm_record_latent_count(&r); k++)
				assert_true(f[k] == value(s, i, (int)k));
			assert_int_equal(r.n_texts, n_texts(i));
			for (int j = 0; j < n_texts(i); j++) {
				assert_int_equal(vfm_index_text(ix, &r, (uint32_t)j, &t, &err), 0);
				assert_string_equal(
					vfm_index_info(ix)->names[t.name], n_texts(i) == 1 ? "" : several[j]);
				assert_int_equal(t.rows, 3 + j);
				assert_int_equal(vfm_index_read_text_f32(ix, &r, &t, f, NULL, &err), 0);
				for (int k = 0; k < 7 * (3 + j); k++)
					assert_true(f[k] == value(s, i, k));
			}
			assert_int_equal(vfm_index_text(ix, &r, r.n_texts, &t, &err), VFM_EUSAGE);
		}
	}
	assert_int_equal(vfm_index_info(ix)->n_names, 3);
	assert_int_equal(vfm_index_get(ix, 0, PER, &r, &err), VFM_EUSAGE);
	assert_int_equal(vfm_index_get(ix, N_SHARDS, 0, &r, &err), VFM_EUSAGE);
	assert_int_equal(vfm_index_at(ix, N_SHARDS * PER, &r, &err), VFM_EUSAGE);
	vfm_index_close(ix);
	assert_int_equal(vfm_index_open(&ix, path, &err), 0); /* by the file's own name */
	assert_string_equal(vfm_index_info(ix)->dir, dir);
	vfm_index_close(ix);
}

/* Writes an index of n samples in one shard; sample 1 alone has a second text, with the width w. */
static int write_text2_index(const char *file, int n, uint16_t w, struct vfm_err *err)
{
	const struct vfm_encoder_ids encoder_ids = {.text2 = {.name = "glyphs", .version = "1"}};
	struct vfm_index_writer *writer;
	int rc = 0;

	TRY(vfm_index_writer_open(&writer, file, err));
	assert_int_equal(vfm_index_writer_shard(writer, "000000.tar", 65536, err), 0);
	for (int i = 0; i < n && rc == 0; i++) {
		struct vfm_index_record r = {.id = (uint64_t)i,
			.sample_offset = (uint64_t)i * 1000,
			.sample_bytes = 1000,
			.latent_offset = (uint64_t)i * 1000,
			.c = 1,
			.t = 1,
			.h = 1,
			.w = 1,
			.latent_dtype = VFM_NPY_F32,
			.latent_header = 64,
			.latent_bytes = 68,
			.json_offset = (uint64_t)i * 1000,
			.flags = i == 1 ? vfm_extra_kinds[VFM_EXTRA_TEXT2].flag : 0};
		const struct vfm_index_text t = {.offset = r.sample_offset + 100,
			.bytes = 64 + 2 * 4 * 5,
			.header = 64,
			.rows = 2,
			.width = w,
			.dtype = VFM_NPY_F32};

		rc = vfm_index_writer_add(writer, &r, &t, NULL, err);
	}
	if (rc == 0)
		return vfm_index_writer_commit(writer, &encoder_ids, err);
	vfm_index_writer_abort(writer);
	return rc;
}

static void some_samples_have_a_second_text(void **state)
{
	struct vfm_err err = {0};
	struct vfm_index_record r;
	struct vfm_index_text t;
	struct vfm_index *ix;
	char file[96], *data;
	uint32_t version;
	size_t len;

	(void)state;
	snprintf(file, sizeof(file), "%s/text2.vfmi", dir);
	assert_int_equal(write_text2_index(file, 3, 5, &err), 0);
	assert_int_equal(vfm_index_open(&ix, file, &err), 0);
	assert_string_equal(vfm_index_info(ix)->encoder_ids.text2.name, "glyphs");
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(vfm_index_get(ix, 0, i, &r, &err), 0);
		assert_int_equal(vfm_record_has_extra(&r, VFM_EXTRA_TEXT2), i == 1);
		assert_int_equal(vfm_record_n_extras(&r), i == 1);
		assert_int_equal(vfm_index_extra(ix, &r, VFM_EXTRA_TEXT2, &t, &err), i == 1 ? 0 : VFM_EUSAGE);
		if (i == 1)
			assert_int_equal(vfm_extra_count(&r, VFM_EXTRA_TEXT2, &t), 10);
	}
	vfm_index_close(ix);
	assert_int_equal(vfm_read_file(file, 1 << 20, &data, &len, NULL), 0);
	memcpy(&version, data + 8, 4);
	assert_int_equal(version, VFM_INDEX_TEXT2_VERSION);
	free(data);
	assert_int_equal(write_text2_index(file, 1, 5, &err), 0); /* without the sample that has one */
	assert_int_equal(vfm_read_file(file, 1 << 20, &data, &len, NULL), 0);
	memcpy(&version, data + 8, 4);
	assert_int_equal(version, VFM_INDEX_VERSION);
	free(data);
	assert_int_equal(write_text2_index(file, 3, 0, &err), VFM_EINPUT); /* the width does not fit the bytes */
	assert_non_null(strstr(err.msg, "second text: its shape and size disagree"));
}

/* Makes the hash tree of an index of one level again, after its `data` changed. */
static void seal_tree(char *data, size_t *len)
{
	uint64_t meta, tree, end, n;
	uint32_t bytes, crc;

	memcpy(&meta, data + 80, 8);
	memcpy(&bytes, data + 88, 4);
	tree = (meta + bytes + 4095) / 4096 * 4096;
	end = tree + 4096;
	memset(data + meta + bytes, 0, end - meta - bytes);
	memcpy(data + 96, &tree, 8);
	memcpy(data + 56, &end, 8);
	crc = vfm_crc32c(0, data, 124);
	memcpy(data + 124, &crc, 4);
	for (n = 0; n < tree / 4096; n++)
		vfm_sha256_raw(data + n * 4096, 4096, (unsigned char *)data + tree + n * VFM_SHA256_BYTES);
	*len = end;
}

/* True if any reader notices that the index at `file` is not the one that was written.  sha256: of that one, or NULL */
static int noticed(const char *file, const char *sha256)
{
	struct vfm_index *ix;
	struct vfm_index_record r;
	struct vfm_index_shard sh;
	struct vfm_index_text t;
	int bad = 0;

	if (vfm_index_open(&ix, file, NULL) < 0)
		return 1;
	bad |= sha256 && strcmp(vfm_index_info(ix)->sha256, sha256) != 0;
	for (uint32_t s = 0; s < vfm_index_info(ix)->n_shards; s++) {
		if (vfm_index_shard(ix, s, &sh, NULL) < 0) {
			bad = 1;
			continue;
		}
		for (uint32_t i = 0; i < sh.count; i++) {
			bad |= vfm_index_get(ix, s, i, &r, NULL) < 0;
			for (uint32_t k = 0; !bad && k < r.n_texts; k++)
				bad |= vfm_index_text(ix, &r, k, &t, NULL) < 0;
		}
	}
	for (uint64_t n = 0; n < vfm_index_info(ix)->n_records; n++)
		bad |= vfm_index_at(ix, n, &r, NULL) < 0;
	vfm_index_close(ix);
	return bad;
}

static void every_flipped_byte_is_noticed(void **state)
{
	char *data, file[96], hex[VFM_SHA256_HEX];
	struct vfm_index *ix;
	size_t len;
	FILE *f;

	(void)state;
	assert_int_equal(vfm_index_open(&ix, path, NULL), 0);
	strcpy(hex, vfm_index_info(ix)->sha256);
	assert_int_equal(vfm_index_check_all(ix, NULL), 0);
	vfm_index_close(ix);
	snprintf(file, sizeof(file), "%s/flip.vfmi", dir);
	assert_int_equal(vfm_read_file(path, 1 << 20, &data, &len, NULL), 0);
	f = fopen(file, "wb");
	assert_int_equal(fwrite(data, 1, len, f), len);
	fclose(f);
	assert_int_equal(noticed(file, hex), 0);
	f = fopen(file, "r+b");
	for (size_t i = 0; i < len; i++) {
		fseek(f, (long)i, SEEK_SET);
		fputc(data[i] ^ 0x41, f);
		fflush(f);
		if (!noticed(file, hex))
			fail_msg("the change of byte %zu was not detected", i);
		fseek(f, (long)i, SEEK_SET);
		fputc(data[i], f);
		fflush(f);
	}
	fclose(f);
	for (size_t cut = 0; cut < len; cut += 31) {
		assert_int_equal(truncate(file, (long)cut), 0);
		assert_int_equal(noticed(file, hex), 1);
		f = fopen(file, "wb");
		assert_int_equal(fwrite(data, 1, len, f), len);
		fclose(f);
	}
	free(data);
}

/* The checksums are right but the content lies: a hostile file rather than a damaged one. */
static void hostile_records(void **state)
{
	static const struct {
		size_t off;
		int bytes;
		uint64_t value;
	} lies[] = {
#define F(field, v) {offsetof(struct vfm_index_record, field), sizeof(((struct vfm_index_record *)0)->field), v}
		F(shard, 1),
		F(index, 3),
		F(sample_offset, UINT64_MAX),
		F(sample_bytes, UINT64_MAX),
		F(latent_offset, UINT64_MAX - 10),
		F(first_text, 1ull << 40),
		F(first_text, UINT64_MAX),
		F(first_text, 2 /* the text of the next sample */),
		F(json_offset, UINT64_MAX),
		F(latent_bytes, UINT32_MAX),
		F(c, 0),
		F(t, 65535),
		F(latent_header, 65535),
		F(latent_header, 3),
		F(text_dim, 65535),
		F(latent_dtype, 0),
		F(latent_dtype, 4),
		F(latent_dtype, 200),
		F(n_texts, 0),
		F(n_texts, 3),
		F(n_texts, VFM_TEXTS_MAX + 1),
		F(json_bytes, UINT32_MAX),
		F(flags, 2 /* media at 0, 0 bytes: fine */),
		F(flags, 128 /* a second text, which this version lacks */),
		F(flags, 256),
		F(flags, 0x8000),
	};
	char *data, file[96];
	size_t len;

	(void)state;
	snprintf(file, sizeof(file), "%s/lie.vfmi", dir);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct vfm_index_record *r;

		assert_int_equal(vfm_read_file(path, 1 << 20, &data, &len, NULL), 0);
		r = (struct vfm_index_record *)(void *)(data + 128);
		memcpy((char *)r + lies[i].off, &lies[i].value, (size_t)lies[i].bytes);
		r->crc = vfm_crc32c(0, r, 124);
		seal_tree(data, &len);
		assert_int_equal(vfm_write_file(file, data, len, NULL), 0);
		if (noticed(file, NULL) !=
			(lies[i].off != offsetof(struct vfm_index_record, flags) || lies[i].value != 2))
			fail_msg("lie %zu passed", i);
		free(data);
	}
}

/* The same for the first text, and for the meta section, in front of which its bytes stand. */
static void hostile_texts(void **state)
{
	static const struct {
		size_t off;
		int bytes;
		uint64_t value;
	} lies[] = {
#define T(field, v) {offsetof(struct vfm_index_text, field), sizeof(((struct vfm_index_text *)0)->field), v}
		T(offset, UINT64_MAX),
		T(offset, 1ull << 40),
		T(bytes, 0),
		T(bytes, UINT32_MAX),
		T(header, 3),
		T(header, 65535),
		T(rows, 0),
		T(rows, 65535),
		T(dtype, 0),
		T(dtype, 4),
		T(name, 3),
		T(name, 255),
	};
	static const char *const metas[] = {"{}", "[]", "{\"texts\":[\"\",\"long\",5]}", "{\"texts\":[\"Long\"]}",
		"{\"texts\":\"long\"}", "{\"texts\":[], \"makers\":[]}"};
	uint64_t texts, meta;
	char *data, file[96];
	size_t len;

	(void)state;
	snprintf(file, sizeof(file), "%s/lie.vfmi", dir);
	assert_int_equal(vfm_read_file(path, 1 << 20, &data, &len, NULL), 0);
	memcpy(&texts, data + 72, 8);
	memcpy(&meta, data + 80, 8);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		struct vfm_index_text was, *t = (struct vfm_index_text *)(void *)(data + texts);

		was = *t;
		memcpy((char *)t + lies[i].off, &lies[i].value, (size_t)lies[i].bytes);
		t->crc = vfm_crc32c(0, t, 28);
		seal_tree(data, &len);
		assert_int_equal(vfm_write_file(file, data, len, NULL), 0);
		if (!noticed(file, NULL))
			fail_msg("lie %zu passed", i);
		*t = was;
	}
	for (size_t i = 0; i < sizeof(metas) / sizeof(metas[0]); i++) {
		uint32_t n[2] = {(uint32_t)strlen(metas[i])};

		memcpy(data + meta, metas[i], n[0]);
		n[1] = vfm_crc32c(0, data + meta, n[0]);
		memcpy(data + 88, n, 8);
		seal_tree(data, &len);
		assert_int_equal(vfm_write_file(file, data, len, NULL), 0);
		if (!noticed(file, NULL))
			fail_msg("meta %s passed", metas[i]);
	}
	free(data);
}

static void other_versions_are_refused(void **state)
{
	char *data, file[96], why[160];
	struct vfm_err err;
	struct vfm_index *ix;
	size_t len;
	uint32_t crc;

	(void)state;
	assert_int_equal(vfm_read_file(path, 1 << 20, &data, &len, NULL), 0);
	snprintf(file, sizeof(file), "%s/version.vfmi", dir);
	for (int i = 0; i < 2; i++) {
		data[8] = i ? 6 : 2;
		snprintf(why, sizeof(why),
			"version %d, which is not read (vfm-curate index --write '%s' makes it anew)", data[8], dir);
		crc = vfm_crc32c(0, data, 124);
		memcpy(data + 124, &crc, 4);
		assert_int_equal(vfm_write_file(file, data, len, NULL), 0);
		assert_int_equal(vfm_index_open(&ix, file, &err), VFM_EUSAGE);
		assert_non_null(strstr(err.msg, why));
	}
	free(data);
}

static void damaged_payload(void **state)
{
	char file[96], *data;
	struct vfm_err err = {0};
	struct vfm_index_text t;
	struct vfm_index *ix;
	struct vfm_index_record r;
	size_t len;
	float f[512];

	(void)state;
	snprintf(file, sizeof(file), "%s/000001.tar", dir);
	assert_int_equal(vfm_read_file(file, 1 << 20, &data, &len, NULL), 0);
	assert_int_equal(vfm_index_open(&ix, dir, &err), 0);
	assert_int_equal(vfm_index_get(ix, 1, 2, &r, &err), 0);
	assert_int_equal(vfm_index_text(ix, &r, 0, &t, &err), 0);
	data[r.latent_offset + r.latent_bytes - 1] ^= 1;
	assert_int_equal(vfm_write_file(file, data, len, NULL), 0);
	assert_int_equal(read_latent_f32(ix, &r, f, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "checksum"));
	assert_non_null(strstr(err.msg, "sample 2 of shard 1"));
	assert_int_equal(vfm_index_read_text_f32(ix, &r, &t, f, NULL, &err), 0);
	vfm_index_close(ix);
	assert_int_equal(truncate(file, 100), 0);
	assert_int_equal(vfm_index_open(&ix, dir, &err), 0);
	assert_int_equal(vfm_index_read_text_f32(ix, &r, &t, f, NULL, &err), VFM_EINPUT);
	data[r.latent_offset + r.latent_bytes - 1] ^= 1;
	assert_int_equal(vfm_write_file(file, data, len, NULL), 0);
	assert_int_equal(read_latent_f32(ix, &r, f, &err), 0);
	vfm_index_close(ix);
	free(data);
}

static void *read_many(void *arg)
{
	struct vfm_index *ix = arg;
	struct vfm_index_record r;
	float f[512];
	long bad = 0;

	for (int k = 0; k < 500; k++) {
		int s = k * 7 % N_SHARDS, i = k * 3 % PER;

		bad += vfm_index_get(ix, (uint32_t)s, (uint32_t)i, &r, NULL) < 0 ||
			read_latent_f32(ix, &r, f, NULL) < 0 || f[5] != value(s, i, 5);
	}
	return (void *)bad;
}

static void threads_share_an_index(void **state)
{
	pthread_t t[4];
	struct vfm_index *ix;
	void *bad;

	(void)state;
	assert_int_equal(vfm_index_open(&ix, dir, NULL), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, read_many, ix), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(t[i], &bad);
		assert_null(bad);
	}
	vfm_index_close(ix);
}

static void errors_are_sentences(void **state)
{
	struct vfm_err err = {0};
	struct vfm_index *ix;
	char file[96];

	(void)state;
	assert_int_equal(vfm_index_open(&ix, "/nonexistent", &err), VFM_EUSAGE);
	snprintf(file, sizeof(file), "%s/none.vfmi", dir);
	assert_int_equal(vfm_write_file(file, "", 0, NULL), 0);
	assert_int_equal(vfm_index_open(&ix, file, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "is not a sample index"));
	assert_int_equal(vfm_sample_id("abc"), 0xba7816bf8f01cfeaull);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_back),
		cmocka_unit_test(some_samples_have_a_second_text),
		cmocka_unit_test(every_flipped_byte_is_noticed),
		cmocka_unit_test(hostile_records),
		cmocka_unit_test(hostile_texts),
		cmocka_unit_test(other_versions_are_refused),
		cmocka_unit_test(damaged_payload),
		cmocka_unit_test(threads_share_an_index),
		cmocka_unit_test(errors_are_sentences),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
