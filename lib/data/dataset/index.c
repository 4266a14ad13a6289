/* index.c - opens and checks index.vfmi, and returns the records of samples. */
#include "data/dataset/index.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "data/dataset/index_impl.h"
#include "data/dataset/index_tree.h"
#include "data/record/caption.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"

static bool is_array_type(int type)
{
	return type == VFM_NPY_F16 || type == VFM_NPY_BF16 || type == VFM_NPY_F32;
}

void vfm_sample_add_time(struct vfm_npy *n)
{
	if (n->ndim != 3)
		return;
	n->shape[3] = n->shape[2];
	n->shape[2] = n->shape[1];
	n->shape[1] = 1;
	n->ndim = 4;
}

int vfm_sample_shape_check(const struct vfm_npy *n, int ndim, const char *what, struct vfm_err *err)
{
	if (n->ndim != ndim || !is_array_type(n->type))
		return vfm_fail(
			err, VFM_EINPUT, "%s: expected %d dimensions of float16, bfloat16 or float32", what, ndim);
	for (int i = 0; i < ndim; i++)
		if (n->shape[i] < 1 || n->shape[i] > UINT16_MAX)
			return vfm_fail(err, VFM_EINPUT, "%s: a dimension of %" PRId64, what, n->shape[i]);
	return 0;
}

int vfm_sample_array_check(
	const struct vfm_npy *n, int ndim, const void *elements, const char *what, struct vfm_err *err)
{
	TRY(vfm_sample_shape_check(n, ndim, what, err));
	return vfm_npy_check_finite(n, elements, what, err);
}

uint64_t vfm_record_latent_count(const struct vfm_index_record *r)
{
	return (uint64_t)r->c * r->t * r->h * r->w;
}

/* ---- open ---- */

static int add_name(struct vfm_index *ix, const json_t *name, struct vfm_err *err)
{
	const char *s = json_string_value(name);

	if (!s || ix->info.n_names == VFM_TEXT_NAMES_MAX || (*s && !vfm_caption_name_ok(s)))
		return vfm_fail(err, VFM_EUSAGE, "texts: expected at most %d names of captions", VFM_TEXT_NAMES_MAX);
	strcpy(ix->info.names[ix->info.n_names++], s);
	return 0;
}

static int parse_part(struct vfm_index *ix, const json_t *o, struct vfm_index_part *p, struct vfm_err *err)
{
	const char *dir = "", *sha = "";

	TRY(vfm_json_str(o, "parts", "dir", true, &dir, err));
	TRY(vfm_json_str(o, "parts", "index_sha256", true, &sha, err));
	if (!*dir || strlen(sha) != VFM_SHA256_HEX - 1)
		return vfm_fail(err, VFM_EUSAGE, "parts: expected a folder, and the sha256 of its index");
	memcpy(p->sha256, sha, VFM_SHA256_HEX);
	p->dir = *dir == '/' ? vfm_strdup(dir) : vfm_strfmt("%s/%s", ix->info.dir, dir);
	return 0;
}

static int parse_parts(struct vfm_index *ix, const json_t *parts, struct vfm_err *err)
{
	const json_t *part;
	size_t i, n = json_array_size(parts);

	if ((ix->h.version != VFM_INDEX_TEXT2_VERSION && (ix->h.version == VFM_INDEX_JOIN_VERSION) != (n > 0)) ||
		n > VFM_INDEX_PARTS)
		return vfm_fail(err, VFM_EUSAGE, "parts: expected 1 to %d, in a join alone", VFM_INDEX_PARTS);
	ix->info.parts = vfm_calloc(n + 1, sizeof(*ix->info.parts));
	json_array_foreach(parts, i, part)
	{
		TRY(parse_part(ix, part, &ix->info.parts[i], err));
		ix->info.n_parts++;
	}
	return 0;
}

static int parse_index_meta(struct vfm_index *ix, struct vfm_err *err)
{
	const char *text = (const char *)ix->map.data + ix->h.meta_offset;
	json_t *meta, *names, *name;
	const char *columns;
	size_t i;
	int rc = 0;

	if (vfm_crc32c(0, text, ix->h.meta_bytes) != ix->h.meta_crc)
		return vfm_fail(err, VFM_EUSAGE, "wrong checksum");
	meta = vfm_json_parse(text, ix->h.meta_bytes, "JSON", err);
	if (!meta)
		return VFM_EUSAGE;
	TRY_OUT(vfm_encoder_ids_from_json(&ix->info.encoder_ids, json_object_get(meta, "makers"), "makers", err));
	TRY_OUT(parse_parts(ix, json_object_get(meta, "parts"), err));
	columns = json_string_value(json_object_get(meta, "mds"));
	ix->info.columns = columns ? vfm_strdup(columns) : NULL;
	names = json_object_get(meta, "texts");
	if (!json_is_array(names))
		rc = vfm_fail(err, VFM_EUSAGE, "texts: expected an array");
	json_array_foreach(names, i, name) TRY_OUT(add_name(ix, name, err));
out:
	json_decref(meta);
	return rc;
}

static bool sizes_agree(const struct vfm_index_header *h)
{
	uint64_t records, texts, end;

	if (__builtin_mul_overflow(h->n_records, sizeof(struct vfm_index_record), &records) ||
		records > (uint64_t)1 << 62)
		return false;
	end = h->records_offset + records;
	if (h->records_offset != sizeof(*h) || h->shards_offset != end)
		return false;
	end += (uint64_t)h->n_shards * sizeof(struct vfm_index_shard);
	if (__builtin_mul_overflow(h->n_texts, sizeof(struct vfm_index_text), &texts) || texts > (uint64_t)1 << 62)
		return false;
	if (h->texts_offset != end || h->meta_offset != end + texts || h->meta_bytes > VFM_INDEX_META_MAX)
		return false;
	end = h->meta_offset + h->meta_bytes;
	return h->tree_offset == (end + VFM_TREE_BLOCK - 1) / VFM_TREE_BLOCK * VFM_TREE_BLOCK &&
		h->file_bytes == vfm_tree_shape_of(h->tree_offset).end;
}

static int check_header(struct vfm_index *ix, struct vfm_err *err)
{
	struct vfm_index_header *h = &ix->h;

	if (ix->map.size < sizeof(*h) || memcmp(ix->map.data, VFM_INDEX_MAGIC, 8) != 0)
		return vfm_fail(err, VFM_EUSAGE, "'%s' is not a sample index", ix->path);
	memcpy(h, ix->map.data, sizeof(*h));
	if (h->version < VFM_INDEX_VERSION || h->version > VFM_INDEX_TEXT2_VERSION || h->header_bytes != sizeof(*h) ||
		h->record_bytes != sizeof(struct vfm_index_record) ||
		h->shard_bytes != sizeof(struct vfm_index_shard) || h->text_bytes != sizeof(struct vfm_index_text))
		return vfm_fail(err, VFM_EUSAGE,
			"'%s' has index version %u, which is not read (vfm-curate index --write '%s' makes it anew)",
			ix->path, h->version, ix->info.dir);
	if (vfm_crc32c(0, h, offsetof(struct vfm_index_header, crc)) != h->crc)
		return vfm_fail(err, VFM_EUSAGE, "'%s': the header's checksum is wrong", ix->path);
	if (!sizes_agree(h))
		return vfm_fail(err, VFM_EUSAGE, "'%s': the header contradicts itself", ix->path);
	if (h->file_bytes != ix->map.size)
		return vfm_fail(err, VFM_EUSAGE, "'%s' is %s: %zu bytes where its header says %" PRIu64, ix->path,
			ix->map.size < h->file_bytes ? "truncated" : "too long", ix->map.size, h->file_bytes);
	return 0;
}

/* The SHA-256 of the header and of the top block of the hash tree. */
static void identity_of(const struct vfm_index *ix, char hex[VFM_SHA256_HEX])
{
	struct vfm_sha256 *s = vfm_sha256_new();

	vfm_sha256_add(s, ix->map.data, sizeof(ix->h));
	vfm_sha256_add(s, ix->map.data + ix->h.file_bytes - VFM_TREE_BLOCK, VFM_TREE_BLOCK);
	vfm_sha256_end(s, hex);
}

/* Compares a part of the file with the hash tree. */
static int check_bytes(const struct vfm_index *ix, const void *part, size_t len, struct vfm_err *err)
{
	if (vfm_tree_check(&ix->tree, (uint64_t)((const uint8_t *)part - ix->map.data), len, err) < 0)
		return vfm_err_context(err, "'%s'", ix->path);
	return 0;
}

static int read_index_meta(struct vfm_index *ix, struct vfm_err *err)
{
	identity_of(ix, ix->info.sha256);
	if (vfm_tree_open(&ix->tree, ix->map.data, ix->h.tree_offset, err) < 0)
		return vfm_err_context(err, "'%s'", ix->path);
	return parse_index_meta(ix, err) < 0 ? vfm_err_context(err, "'%s': meta", ix->path) : 0;
}

/* Only advice: without it, all works as well. */
static void advise_index(struct vfm_index *ix, int advice)
{
	(void)madvise((void *)(uintptr_t)ix->map.data, ix->map.size, advice);
}

void vfm_index_expect_random(struct vfm_index *ix)
{
	advise_index(ix, MADV_RANDOM);
}

int vfm_index_open(struct vfm_index **out, const char *path, struct vfm_err *err)
{
	struct vfm_index *ix = vfm_calloc(1, sizeof(*ix));
	struct stat st = {0};
	int rc;

	pthread_mutex_init(&ix->lock, NULL);
	for (int i = 0; i < VFM_INDEX_FDS; i++)
		ix->slots[i].fd = -1;
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
		ix->info.dir = vfm_strdup(path);
		ix->path = vfm_strfmt("%s/" VFM_INDEX_NAME, path);
	} else {
		ix->info.dir = vfm_dir_of(path);
		ix->path = vfm_strdup(path);
	}
	rc = vfm_map_open(&ix->map, ix->path, err);
	if (rc < 0 && S_ISDIR(st.st_mode) && access(ix->path, F_OK) != 0 && errno == ENOENT)
		rc = vfm_fail(err, rc, "'%s' has no " VFM_INDEX_NAME " (vfm-curate index --write '%s' makes one)", path,
			path);
	if (rc < 0) {
		if (rc == VFM_EINPUT)
			rc = VFM_EUSAGE;
		if (err)
			err->code = rc;
		goto out;
	}
	advise_index(ix, MADV_RANDOM);
	TRY_OUT(check_header(ix, err));
	rc = read_index_meta(ix, err);
	advise_index(ix, MADV_NORMAL);
	if (rc < 0) {
		rc = rc == VFM_EENV ? rc : VFM_EUSAGE;
		goto out;
	}
	ix->info.n_records = ix->h.n_records;
	ix->info.n_shards = ix->h.n_shards;
	ix->records = (const void *)(ix->map.data + ix->h.records_offset);
	ix->shards = (const void *)(ix->map.data + ix->h.shards_offset);
	ix->texts = (const void *)(ix->map.data + ix->h.texts_offset);
	*out = ix;
	return 0;
out:
	vfm_index_close(ix);
	return rc;
}

void vfm_index_close(struct vfm_index *ix)
{
	if (!ix)
		return;
	for (int i = 0; i < VFM_INDEX_FDS; i++)
		if (ix->slots[i].fd >= 0)
			close(ix->slots[i].fd);
	vfm_tree_close(&ix->tree);
	vfm_map_close(&ix->map);
	pthread_mutex_destroy(&ix->lock);
	free(ix->info.dir);
	free(ix->path);
	free(ix->info.columns);
	for (uint32_t i = 0; i < ix->info.n_parts; i++) {
		free(ix->info.parts[i].dir);
		free(ix->info.parts[i].name);
	}
	free(ix->info.parts);
	free(ix);
}

/* ---- identity ---- */

/* All that was read is in blocks that are trusted. */
static int verify_index(void *ctx, struct vfm_err *err)
{
	struct vfm_index *ix = ctx;
	char hex[VFM_SHA256_HEX];

	identity_of(ix, hex);
	if (!strcmp(hex, ix->info.sha256) && vfm_tree_recheck(&ix->tree, NULL) >= 0)
		return 0;
	return vfm_fail(err, VFM_EENV, "'%s' changed while it was in use", ix->path);
}

int vfm_index_check(struct vfm_index *ix, struct vfm_err *err)
{
	return vfm_map_check(&ix->map, verify_index, ix, err);
}

const struct vfm_index_info *vfm_index_info(const struct vfm_index *ix)
{
	return &ix->info;
}

int vfm_index_check_all(struct vfm_index *ix, struct vfm_err *err)
{
	return check_bytes(ix, ix->map.data, ix->h.tree_offset, err);
}

/* ---- entries ---- */

bool vfm_shard_name_ok(const char *name, bool in_folders)
{
	size_t n = strnlen(name, 32);

	for (size_t i = 0; i < n; i++) {
		bool begins = i == 0 || name[i - 1] == '/';

		if ((begins && (name[i] == '/' || name[i] == '.')) || (name[i] == '/' && (!in_folders || i + 1 == n)) ||
			(unsigned char)name[i] < ' ' || name[i] == 0x7f)
			return false;
	}
	return n > 0 && n < 32;
}

int vfm_index_shard(const struct vfm_index *ix, uint32_t shard, struct vfm_index_shard *out, struct vfm_err *err)
{
	struct vfm_index_shard s;

	if (shard >= ix->h.n_shards)
		return vfm_fail(
			err, VFM_EUSAGE, "'%s' has no shard %u, only %u shards", ix->path, shard, ix->h.n_shards);
	memcpy(&s, &ix->shards[shard], sizeof(s));
	if (vfm_crc32c(0, &s, offsetof(struct vfm_index_shard, crc)) != s.crc)
		return vfm_fail(err, VFM_EINPUT, "'%s': shard %u: wrong checksum", ix->path, shard);
	TRY(check_bytes(ix, &ix->shards[shard], sizeof(s), err));
	if (!vfm_shard_name_ok(s.name, ix->info.columns) || s.first > ix->h.n_records ||
		s.count > ix->h.n_records - s.first || s.bytes > INT64_MAX || s.folder > ix->info.n_parts)
		return vfm_fail(err, VFM_EINPUT, "'%s': shard %u: impossible entry", ix->path, shard);
	*out = s;
	return 0;
}

/* [off, off + len) lies within [lo, hi) */
static bool within(uint64_t off, uint64_t len, uint64_t lo, uint64_t hi)
{
	return off >= lo && off <= hi && len <= hi - off;
}

static bool array_ok(const struct vfm_index_record *r, uint64_t count, uint8_t dtype, uint16_t header, uint32_t bytes)
{
	uint16_t least = r->flags & VFM_REC_MDS ? 0 : 10;
	uint64_t size = is_array_type(dtype) ? vfm_npy_type_size(dtype) : 0;

	/* count < 2^64 by its u16 factors, but count * size may not be */
	return size && count > 0 && count <= UINT32_MAX && header >= least && header <= VFM_NPY_HEADER_MAX &&
		count * size + header == bytes;
}

const char *vfm_record_fault(const struct vfm_index_record *r, const struct vfm_index_shard *s)
{
	uint64_t lo = r->sample_offset, hi;

	if (!within(lo, r->sample_bytes, 0, s->bytes))
		return "the sample lies outside its shard";
	hi = lo + r->sample_bytes;
	if (r->flags & ~VFM_REC_ALL)
		return "unknown flags";
	if (r->flags & VFM_REC_NO_LATENT) {
		if (r->latent_offset || r->latent_bytes || vfm_record_latent_count(r) || r->latent_dtype ||
			r->latent_header || r->latent_crc)
			return "latents of a sample without them";
	} else if (!array_ok(r, vfm_record_latent_count(r), r->latent_dtype, r->latent_header, r->latent_bytes)) {
		return "the latent's shape and size disagree";
	} else if (!within(r->latent_offset, r->latent_bytes, lo, hi)) {
		return "a member lies outside its sample";
	}
	if (!within(r->json_offset, r->json_bytes, lo, hi) ||
		((r->flags & VFM_REC_MEDIA) && !within(r->media_offset, r->media_bytes, lo, hi)))
		return "a member lies outside its sample";
	if (r->n_texts > VFM_TEXTS_MAX || !r->n_texts != !r->text_dim)
		return "texts without a width, or too many";
	return NULL;
}

/* An array in another shard is compared with that shard (check_place). */
const char *vfm_index_array_fault(const struct vfm_index_text *t, const struct vfm_index_record *r, int e)
{
	uint64_t count = e < 0 ? (uint64_t)t->rows * r->text_dim : vfm_extra_count(r, (enum vfm_extra)e, t);

	if (!t->shard && !within(t->offset, t->bytes, r->sample_offset, r->sample_offset + r->sample_bytes))
		return e < 0 ? "a text lies outside its sample" : "it lies outside its sample";
	if (!array_ok(r, count, t->dtype, t->header, t->bytes))
		return e < 0 ? "a text's shape and size disagree" : "its shape and size disagree";
	return NULL;
}

int vfm_index_get(
	const struct vfm_index *ix, uint32_t shard, uint32_t i, struct vfm_index_record *out, struct vfm_err *err)
{
	struct vfm_index_shard s;
	struct vfm_index_record r;
	const char *why;

	TRY(vfm_index_shard(ix, shard, &s, err));
	if (i >= s.count)
		return vfm_fail(err, VFM_EUSAGE, "'%s': shard %u has no sample %u, only %u samples", ix->path, shard, i,
			s.count);
	memcpy(&r, &ix->records[s.first + i], sizeof(r));
	if (vfm_crc32c(0, &r, offsetof(struct vfm_index_record, crc)) != r.crc)
		why = "wrong checksum";
	else if (r.shard != shard || r.index != i)
		why = "the record names another sample";
	else if (vfm_record_has_extra(&r, VFM_EXTRA_TEXT2) && ix->h.version != VFM_INDEX_TEXT2_VERSION)
		why = "a second text in an index of a version without them";
	else
		why = vfm_record_fault(&r, &s);
	if (why)
		return vfm_fail(err, VFM_EINPUT, "'%s': shard %u, sample %u: %s", ix->path, shard, i, why);
	TRY(check_bytes(ix, &ix->records[s.first + i], sizeof(r), err));
	*out = r;
	return 0;
}

int vfm_index_at(const struct vfm_index *ix, uint64_t n, struct vfm_index_record *out, struct vfm_err *err)
{
	struct vfm_index_shard s;
	struct vfm_index_record r;

	if (n >= ix->h.n_records)
		return vfm_fail(
			err, VFM_EUSAGE, "'%s' has no record %" PRIu64 ", only %" PRIu64, ix->path, n, ix->h.n_records);
	memcpy(&r, &ix->records[n], sizeof(r));
	if (r.shard < ix->h.n_shards)
		TRY(vfm_index_shard(ix, r.shard, &s, err));
	if (r.shard >= ix->h.n_shards || s.first + r.index != n)
		return vfm_fail(err, VFM_EINPUT, "'%s': record %" PRIu64 " is damaged", ix->path, n);
	return vfm_index_get(ix, r.shard, r.index, out, err);
}

/* ---- texts ---- */

/* Checks that an array in another shard than its record lies within it. */
static int check_place(const struct vfm_index *ix, const struct vfm_index_text *t, struct vfm_err *err)
{
	struct vfm_index_shard s;

	if (!t->shard)
		return 0;
	if (t->shard > ix->h.n_shards)
		return vfm_fail(
			err, VFM_EINPUT, "'%s': an array in shard %u of %u", ix->path, t->shard - 1, ix->h.n_shards);
	TRY(vfm_index_shard(ix, t->shard - 1, &s, err));
	return within(t->offset, t->bytes, 0, s.bytes)
		? 0
		: vfm_fail(err, VFM_EINPUT, "'%s': an array lies outside shard %u", ix->path, t->shard - 1);
}

/* Checks entry n of the texts, text or extra array e of a record, and copies it to *out.  e < 0: a text. */
static int get_array(const struct vfm_index *ix, const struct vfm_index_record *r, uint64_t n, int e, const char *what,
	struct vfm_index_text *out, struct vfm_err *err)
{
	struct vfm_index_text t;
	const char *why;

	if (n >= ix->h.n_texts || n < r->first_text) {
		why = e < 0 ? "not among the texts" : "it is not in the index";
	} else {
		memcpy(&t, &ix->texts[n], sizeof(t));
		if (vfm_crc32c(0, &t, offsetof(struct vfm_index_text, crc)) != t.crc)
			why = "wrong checksum";
		else if (e < 0 && t.name >= ix->info.n_names)
			why = "a text without a name";
		else
			why = vfm_index_array_fault(&t, r, e);
	}
	if (why)
		return vfm_fail(
			err, VFM_EINPUT, "'%s': shard %u, sample %u, %s: %s", ix->path, r->shard, r->index, what, why);
	TRY(check_bytes(ix, &ix->texts[n], sizeof(t), err));
	TRY(check_place(ix, &t, err));
	*out = t;
	return 0;
}

int vfm_index_text(const struct vfm_index *ix, const struct vfm_index_record *r, uint32_t i, struct vfm_index_text *out,
	struct vfm_err *err)
{
	char what[32];

	if (i >= r->n_texts)
		return vfm_fail(err, VFM_EUSAGE, "'%s': sample %u of shard %u has no text %u, only %u", ix->info.dir,
			r->index, r->shard, i, r->n_texts);
	snprintf(what, sizeof(what), "text %u", i);
	return get_array(ix, r, r->first_text + i, -1, what, out, err);
}

/* ---- extra arrays ---- */

bool vfm_record_has_extra(const struct vfm_index_record *r, enum vfm_extra e)
{
	return r->flags & vfm_extra_kinds[e].flag;
}

int vfm_record_n_extras(const struct vfm_index_record *r)
{
	int n = 0;

	for (int e = 0; e < VFM_EXTRAS; e++)
		n += vfm_record_has_extra(r, (enum vfm_extra)e);
	return n;
}

uint64_t vfm_extra_count(const struct vfm_index_record *r, enum vfm_extra e, const struct vfm_index_text *t)
{
	return (uint64_t)t->rows * (e == VFM_EXTRA_COND ? (uint64_t)r->t * r->h * r->w : t->width);
}

int vfm_index_extra(const struct vfm_index *ix, const struct vfm_index_record *r, enum vfm_extra e,
	struct vfm_index_text *out, struct vfm_err *err)
{
	uint64_t n = r->first_text + r->n_texts;

	if (!vfm_record_has_extra(r, e))
		return vfm_fail(err, VFM_EUSAGE, "'%s': shard %u, sample %u has no %s", ix->path, r->shard, r->index,
			vfm_extra_kinds[e].name);
	for (int k = 0; k < (int)e; k++)
		n += vfm_record_has_extra(r, (enum vfm_extra)k);
	return get_array(ix, r, n, (int)e, vfm_extra_kinds[e].name, out, err);
}
