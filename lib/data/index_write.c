/* The writer of index.h.  The shard table follows the records because it is complete only at the end.  The writer
 * overwrites the blank header last and then renames the file into place. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/index.h"
#include "data/index_impl.h"

struct vfm_index_writer {
	struct vfm_atomic a;
	struct vfm_index_shard *shards;
	size_t n_shards, cap_shards;
	uint64_t n_records;
	char *path;
};

static int write_hashed(struct vfm_index_writer *w, const void *data, size_t len, struct vfm_err *err)
{
	if (fwrite(data, 1, len, w->a.f) != len)
		return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", w->path);
	return 0;
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
	struct vfm_index_shard s = {.bytes = bytes, .first = w->n_records};

	if (!*name || strlen(name) >= sizeof(s.name) || *name == '.' || strchr(name, '/'))
		return vfm_fail(err, VFM_EUSAGE, "'%s' cannot be the name of a shard", name);
	if (w->n_shards == UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "too many shards");
	strcpy(s.name, name);
	vfm_grow(&w->shards, &w->cap_shards, w->n_shards + 1, sizeof(s));
	w->shards[w->n_shards++] = s;
	return 0;
}

int vfm_index_writer_add(struct vfm_index_writer *w, const struct vfm_record *r, struct vfm_err *err)
{
	struct vfm_index_shard *s = w->n_shards ? &w->shards[w->n_shards - 1] : NULL;
	struct vfm_record rec = *r;
	const char *why;

	if (!s || s->count == UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "'%s': a record without a shard", w->path);
	rec.shard = (uint32_t)(w->n_shards - 1);
	rec.index = s->count;
	why = vfm_record_fault(&rec, s);
	if (why)
		return vfm_fail(err, VFM_EINPUT, "'%s': shard %u, sample %u: %s", w->path, rec.shard, rec.index, why);
	rec.crc = vfm_crc32c(0, &rec, offsetof(struct vfm_record, crc));
	TRY(write_hashed(w, &rec, sizeof(rec), err));
	s->count++;
	w->n_records++;
	return 0;
}

static int set_label(char field[24], const struct vfm_maker *m, struct vfm_err *err)
{
	if (!m->name[0])
		return 0;
	if (snprintf(field, 24, "%s %s", m->name, m->version) >= 24)
		return vfm_fail(err, VFM_EINPUT, "the label '%s %s' has more than 23 bytes", m->name, m->version);
	return 0;
}

int vfm_index_writer_commit(struct vfm_index_writer *w, const struct vfm_makers *makers, struct vfm_err *err)
{
	struct vfm_index_header h = {
		.magic = VFM_INDEX_MAGIC,
		.version = VFM_INDEX_VERSION,
		.header_bytes = sizeof(h),
		.record_bytes = sizeof(struct vfm_record),
		.shard_bytes = sizeof(struct vfm_index_shard),
		.n_records = w->n_records,
		.n_shards = (uint32_t)w->n_shards,
		.records_offset = sizeof(h),
		.shards_offset = sizeof(h) + w->n_records * sizeof(struct vfm_record),
	};
	int rc;

	h.file_bytes = h.shards_offset + w->n_shards * sizeof(struct vfm_index_shard);
	TRY_OUT(set_label(h.tokenizer, &makers->tokenizer, err));
	TRY_OUT(set_label(h.embedder, &makers->text, err));
	h.crc = vfm_crc32c(0, &h, offsetof(struct vfm_index_header, crc));
	for (size_t i = 0; i < w->n_shards; i++) {
		w->shards[i].crc = vfm_crc32c(0, &w->shards[i], offsetof(struct vfm_index_shard, crc));
		TRY_OUT(write_hashed(w, &w->shards[i], sizeof(w->shards[i]), err));
	}
	if (fseeko(w->a.f, 0, SEEK_SET) != 0) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", w->path);
		goto out;
	}
	TRY_OUT(write_hashed(w, &h, sizeof(h), err));
	rc = vfm_atomic_commit(&w->a, err);
out:
	vfm_index_writer_abort(w);
	return rc;
}

void vfm_index_writer_abort(struct vfm_index_writer *w)
{
	if (!w)
		return;
	vfm_atomic_abort(&w->a);
	free(w->shards);
	free(w->path);
	free(w);
}
