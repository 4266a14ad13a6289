/* The writer of index.h.  The tables of shards and texts follow the records because they are complete only at the end.
 * Until then the shards are kept in memory, and the texts in an unlinked file next to the index: they may be many.  The
 * writer overwrites the blank header last and then renames the file into place.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/dataset/index.h"
#include "data/dataset/index_impl.h"
#include "data/dataset/index_tree.h"
#include "data/record/caption.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"

struct vfm_index_writer {
	struct vfm_atomic a;
	struct vfm_index_shard *shards;
	size_t n_shards, cap_shards;
	FILE *texts;
	uint64_t n_texts;
	struct vfm_tree_writer tree;
	char names[VFM_TEXT_NAMES_MAX][VFM_CAPTION_NAME];
	uint32_t n_names;
	uint64_t n_records;
	const char *columns; /* of MosaicML Streaming */
	json_t *parts;       /* of a join; NULL: none */
	bool has_text2;      /* a record has a second text */
	char *path;
};

static int write_hashed(struct vfm_index_writer *w, const void *data, size_t len, struct vfm_err *err)
{
	if (fwrite(data, 1, len, w->a.f) != len)
		return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", w->path);
	return vfm_tree_writer_add(&w->tree, data, len, err);
}

/* Opens the two unlinked files, which end with the process. */
static int open_spills(struct vfm_index_writer *w, struct vfm_err *err)
{
	char *dir = vfm_dir_of(w->path);
	int rc = vfm_unlinked_in(dir, &w->texts, err);

	if (rc >= 0)
		rc = vfm_tree_writer_open(&w->tree, dir, err);
	free(dir);
	return rc;
}

int vfm_index_writer_open(struct vfm_index_writer **out, const char *path, struct vfm_err *err)
{
	struct vfm_index_writer *w = vfm_calloc(1, sizeof(*w));
	struct vfm_index_header blank;
	int rc;

	memset(&blank, 0, sizeof(blank));
	w->path = vfm_strdup(path);
	rc = vfm_atomic_open(&w->a, path, err);
	if (rc >= 0)
		rc = open_spills(w, err);
	if (rc >= 0)
		rc = write_hashed(w, &blank, sizeof(blank), err);
	if (rc < 0) {
		vfm_index_writer_abort(w);
		return rc;
	}
	*out = w;
	return 0;
}

int vfm_index_writer_shard(struct vfm_index_writer *w, const char *name, uint64_t bytes, struct vfm_err *err)
{
	struct vfm_index_shard s = {
		.bytes = bytes, .first = w->n_records, .folder = (uint32_t)json_array_size(w->parts)};

	if (!vfm_shard_name_ok(name, w->columns))
		return vfm_fail(err, VFM_EUSAGE, "'%s' cannot be the name of a shard", name);
	if (w->n_shards == UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "too many shards");
	strcpy(s.name, name);
	vfm_grow(&w->shards, &w->cap_shards, w->n_shards + 1, sizeof(s));
	w->shards[w->n_shards++] = s;
	return 0;
}

int vfm_index_writer_part(
	struct vfm_index_writer *w, const char *dir, const char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	json_t *part;

	if (json_array_size(w->parts) == VFM_INDEX_PARTS)
		return vfm_fail(err, VFM_EUSAGE, "a join of more than %d datasets", VFM_INDEX_PARTS);
	part = json_pack("{s:s,s:s}", "dir", dir, "index_sha256", sha256);
	if (!part)
		return vfm_fail(err, VFM_EUSAGE, "the folder '%s' of a join is not UTF-8", dir);
	if (!w->parts)
		w->parts = json_array();
	json_array_append_new(w->parts, part);
	return 0;
}

/* Returns the number of a caption's name, or VFM_EINPUT. */
static int number_name(struct vfm_index_writer *w, const char *name, struct vfm_err *err)
{
	uint32_t i = 0;

	while (i < w->n_names && strcmp(w->names[i], name) != 0)
		i++;
	if (i < w->n_names)
		return (int)i;
	if (*name && !vfm_caption_name_ok(name))
		return vfm_fail(err, VFM_EINPUT, "'%s': '%.80s' cannot name a caption", w->path, name);
	if (i == VFM_TEXT_NAMES_MAX)
		return vfm_fail(err, VFM_EINPUT, "'%s': more than %d names of captions", w->path, VFM_TEXT_NAMES_MAX);
	strcpy(w->names[w->n_names++], name);
	return (int)i;
}

/* Checks an array of a record, text or extra array e (vfm_index_array_fault), and completes it.  why: NULL, or a fault.
 */
static int complete_array(const struct vfm_index_writer *w, const struct vfm_index_record *r, struct vfm_index_text *t,
	int e, const char *what, const char *why, struct vfm_err *err)
{
	why = why ? why : vfm_index_array_fault(t, r, e);
	if (why)
		return vfm_fail(
			err, VFM_EINPUT, "'%s': shard %u, sample %u, %s: %s", w->path, r->shard, r->index, what, why);
	t->crc = vfm_crc32c(0, t, offsetof(struct vfm_index_text, crc));
	return 0;
}

/* Copies the texts of a record to out, complete. */
static int make_texts(struct vfm_index_writer *w, const struct vfm_index_record *r, const struct vfm_index_text *texts,
	const char *const *names, struct vfm_index_text *out, struct vfm_err *err)
{
	char what[32];

	for (uint32_t i = 0; i < r->n_texts; i++) {
		int name = number_name(w, names[i], err);
		bool ascends = i == 0 || strcmp(names[i - 1], names[i]) < 0;

		TRY(name);
		out[i] = texts[i];
		out[i].name = (uint8_t)name;
		snprintf(what, sizeof(what), "text %u", i);
		TRY(complete_array(w, r, &out[i], -1, what, ascends ? NULL : "the names do not ascend", err));
	}
	return 0;
}

/* The same for the extra arrays; `extra` has those of the record. */
static int make_extras(struct vfm_index_writer *w, const struct vfm_index_record *r, const struct vfm_index_text *extra,
	struct vfm_index_text *out, struct vfm_err *err)
{
	for (int e = 0; e < VFM_EXTRAS; e++) {
		if (!vfm_record_has_extra(r, (enum vfm_extra)e))
			continue;
		*out = *extra++;
		out->name = 0;
		TRY(complete_array(w, r, out++, e, vfm_extra_kinds[e].name, NULL, err));
	}
	return 0;
}

static int add_texts(struct vfm_index_writer *w, const struct vfm_index_record *r, const struct vfm_index_text *texts,
	const char *const *names, struct vfm_err *err)
{
	struct vfm_index_text out[VFM_TEXTS_MAX + VFM_EXTRAS];
	size_t n = r->n_texts + (size_t)vfm_record_n_extras(r);

	TRY(make_texts(w, r, texts, names, out, err));
	TRY(make_extras(w, r, texts + r->n_texts, out + r->n_texts, err));
	if (n && fwrite(out, sizeof(*out), n, w->texts) != n)
		return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of texts next to '%s'", w->path);
	w->n_texts += n;
	return 0;
}

int vfm_index_writer_add(struct vfm_index_writer *w, const struct vfm_index_record *r,
	const struct vfm_index_text *texts, const char *const *names, struct vfm_err *err)
{
	struct vfm_index_shard *s = w->n_shards ? &w->shards[w->n_shards - 1] : NULL;
	struct vfm_index_record rec = *r;
	const char *why;

	if (!s || s->count == UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "'%s': a record without a shard", w->path);
	rec.shard = (uint32_t)(w->n_shards - 1);
	rec.index = s->count;
	why = vfm_record_fault(&rec, s);
	if (why)
		return vfm_fail(err, VFM_EINPUT, "'%s': shard %u, sample %u: %s", w->path, rec.shard, rec.index, why);
	rec.first_text = rec.n_texts || vfm_record_n_extras(&rec) ? w->n_texts : 0;
	TRY(add_texts(w, &rec, texts, names, err));
	w->has_text2 |= vfm_record_has_extra(&rec, VFM_EXTRA_TEXT2);
	rec.crc = vfm_crc32c(0, &rec, offsetof(struct vfm_index_record, crc));
	TRY(write_hashed(w, &rec, sizeof(rec), err));
	s->count++;
	w->n_records++;
	return 0;
}

void vfm_index_writer_set_columns(struct vfm_index_writer *w, const char *columns)
{
	w->columns = columns;
}

static void make_meta(const struct vfm_index_writer *w, const struct vfm_encoder_ids *encoder_ids, struct vfm_buf *text)
{
	json_t *meta = json_object(), *names = json_array();

	for (uint32_t i = 0; i < w->n_names; i++)
		json_array_append_new(names, json_string(w->names[i]));
	json_object_set_new(meta, "makers", vfm_encoder_ids_json(encoder_ids));
	json_object_set_new(meta, "texts", names);
	if (w->parts)
		json_object_set(meta, "parts", w->parts);
	if (w->columns)
		json_object_set_new(meta, "mds", json_string(w->columns));
	vfm_json_text(text, meta, 0);
	json_decref(meta);
}

static int copy_texts(struct vfm_index_writer *w, struct vfm_err *err)
{
	char block[1 << 16];
	uint64_t left = w->n_texts * sizeof(struct vfm_index_text);

	if (fseeko(w->texts, 0, SEEK_SET) != 0) /* flushes */
		return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of texts next to '%s'", w->path);
	for (size_t n; left > 0; left -= n) {
		n = fread(block, 1, left < sizeof(block) ? (size_t)left : sizeof(block), w->texts);
		if (n == 0)
			return vfm_fail_errno(
				err, VFM_EENV, "cannot read the temporary file of texts next to '%s'", w->path);
		TRY(write_hashed(w, block, n, err));
	}
	return 0;
}

static int write_tables(struct vfm_index_writer *w, const struct vfm_buf *meta, struct vfm_err *err)
{
	static const char zeros[VFM_TREE_BLOCK];

	for (size_t i = 0; i < w->n_shards; i++) {
		w->shards[i].crc = vfm_crc32c(0, &w->shards[i], offsetof(struct vfm_index_shard, crc));
		TRY(write_hashed(w, &w->shards[i], sizeof(w->shards[i]), err));
	}
	TRY(copy_texts(w, err));
	TRY(write_hashed(w, meta->data, meta->len, err));
	return write_hashed(w, zeros, -w->tree.bytes % VFM_TREE_BLOCK, err);
}

int vfm_index_writer_commit(struct vfm_index_writer *w, const struct vfm_encoder_ids *encoder_ids, struct vfm_err *err)
{
	struct vfm_index_header h = {
		.magic = VFM_INDEX_MAGIC,
		.version = w->has_text2 ? VFM_INDEX_TEXT2_VERSION
			: w->parts      ? VFM_INDEX_JOIN_VERSION
					: VFM_INDEX_VERSION,
		.header_bytes = sizeof(h),
		.record_bytes = sizeof(struct vfm_index_record),
		.shard_bytes = sizeof(struct vfm_index_shard),
		.text_bytes = sizeof(struct vfm_index_text),
		.n_records = w->n_records,
		.n_shards = (uint32_t)w->n_shards,
		.n_texts = w->n_texts,
		.records_offset = sizeof(h),
		.shards_offset = sizeof(h) + w->n_records * sizeof(struct vfm_index_record),
	};
	struct vfm_buf meta = {0};
	int rc;

	make_meta(w, encoder_ids, &meta);
	h.texts_offset = h.shards_offset + w->n_shards * sizeof(struct vfm_index_shard);
	h.meta_offset = h.texts_offset + w->n_texts * sizeof(struct vfm_index_text);
	h.meta_bytes = (uint32_t)meta.len;
	h.meta_crc = vfm_crc32c(0, meta.data, meta.len);
	TRY_OUT(write_tables(w, &meta, err));
	h.tree_offset = w->tree.bytes;
	h.file_bytes = vfm_tree_shape_of(h.tree_offset).end;
	h.crc = vfm_crc32c(0, &h, offsetof(struct vfm_index_header, crc));
	TRY_OUT(vfm_tree_writer_end(&w->tree, &h, sizeof(h), w->a.f, err));
	if (fseeko(w->a.f, 0, SEEK_SET) != 0) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", w->path);
		goto out;
	}
	if (fwrite(&h, sizeof(h), 1, w->a.f) != 1) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", w->path);
		goto out;
	}
	rc = vfm_atomic_commit(&w->a, err);
out:
	vfm_buf_release(&meta);
	vfm_index_writer_abort(w);
	return rc;
}

void vfm_index_writer_abort(struct vfm_index_writer *w)
{
	if (!w)
		return;
	vfm_atomic_abort(&w->a);
	if (w->texts)
		fclose(w->texts);
	vfm_tree_writer_close(&w->tree);
	json_decref(w->parts);
	free(w->shards);
	free(w->path);
	free(w);
}
