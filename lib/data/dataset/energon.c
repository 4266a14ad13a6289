/* energon.c - writes index.sqlite, .info.json and the other files of Megatron-Energon, and checks them. */
#include "data/dataset/energon.h"

#include <errno.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "io/opt.h"
#include "io/version.h"

struct vfm_energon {
	char *dir, *meta, *db_path, *db_tmp;
	sqlite3 *db;
	sqlite3_stmt *sample, *part;
	struct vfm_buf counts, split; /* members of shard_counts; lines of split.yaml */
	int64_t n_shards;
};

static const char schema[] = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
			     "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -65536;"
			     "CREATE TABLE samples ( tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL, "
			     "sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER );"
			     "CREATE TABLE sample_parts ( tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, "
			     "content_byte_offset INTEGER, content_byte_size INTEGER );"
			     "BEGIN;";
/* Sorting all keys at the end takes less time than to keep them in order, and the memory of the cache alone. */
static const char indexes[] =
	"CREATE UNIQUE INDEX idx_samples_by_key ON samples(sample_key);"
	"CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);"
	"CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);"
	"CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, "
	"content_byte_size);"
	"COMMIT;";

static int db_fail(struct vfm_energon *e, struct vfm_err *err)
{
	return vfm_fail(
		err, VFM_EENV, "cannot write '%s': %s", e->db_path, e->db ? sqlite3_errmsg(e->db) : "no memory");
}

int vfm_energon_open(struct vfm_energon **out, const char *dir, struct vfm_err *err)
{
	struct vfm_energon *e = vfm_calloc(1, sizeof(*e));
	int rc;

	e->dir = vfm_strdup(dir);
	e->meta = vfm_strfmt("%s/.nv-meta", dir);
	e->db_path = vfm_strfmt("%s/index.sqlite", e->meta);
	e->db_tmp = vfm_strfmt("%s.tmp", e->db_path);
	TRY_OUT(vfm_mkdir_p(e->meta, err));
	if (unlink(e->db_tmp) != 0 && errno != ENOENT) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot remove '%s'", e->db_tmp);
		goto out;
	}
	if (sqlite3_open(e->db_tmp, &e->db) != SQLITE_OK ||
		sqlite3_exec(e->db, schema, NULL, NULL, NULL) != SQLITE_OK ||
		sqlite3_prepare_v2(e->db, "INSERT INTO samples VALUES (?,?,?,?,?)", -1, &e->sample, NULL) !=
			SQLITE_OK ||
		sqlite3_prepare_v2(e->db, "INSERT INTO sample_parts VALUES (?,?,?,?,?)", -1, &e->part, NULL) !=
			SQLITE_OK) {
		rc = db_fail(e, err);
		goto out;
	}
	*out = e;
	return 0;
out:
	vfm_energon_abort(e);
	return rc;
}

void vfm_energon_abort(struct vfm_energon *e)
{
	if (!e)
		return;
	sqlite3_finalize(e->sample);
	sqlite3_finalize(e->part);
	sqlite3_close(e->db);
	unlink(e->db_tmp);
	vfm_buf_release(&e->counts);
	vfm_buf_release(&e->split);
	free(e->dir);
	free(e->meta);
	free(e->db_path);
	free(e->db_tmp);
	free(e);
}

static char *idx_path(const char *dir, const char *name)
{
	return vfm_strfmt("%s/%s.idx", dir, name);
}

static uint64_t *idx_of(const struct vfm_scan *s)
{
	uint64_t *v = vfm_malloc((s->n + 1) * sizeof(*v));

	for (size_t i = 0; i < s->n; i++)
		v[i] = s->samples[i].rec.sample_offset;
	v[s->n] = s->end;
	return v;
}

/* A row (shard, x, x, offset, bytes), where the text stands in column `text_at`, 2 or 3, and the index in the other. */
static int insert_row(
	sqlite3_stmt *st, int64_t shard, const char *text, int text_at, int64_t index, int64_t c, int64_t d)
{
	sqlite3_reset(st);
	sqlite3_bind_int64(st, 1, shard);
	sqlite3_bind_text(st, text_at, text, -1, SQLITE_STATIC);
	sqlite3_bind_int64(st, 5 - text_at, index);
	sqlite3_bind_int64(st, 4, c);
	sqlite3_bind_int64(st, 5, d);
	return sqlite3_step(st);
}

static int add_sample(struct vfm_energon *e, const struct vfm_scan_sample *s, int64_t index, struct vfm_err *err)
{
	int rc = insert_row(
		e->sample, e->n_shards, s->key, 2, index, (int64_t)s->rec.sample_offset, (int64_t)s->rec.sample_bytes);

	for (int i = 0; rc == SQLITE_DONE && i < s->n_parts; i++)
		rc = insert_row(e->part, e->n_shards, s->parts[i].name, 3, index, (int64_t)s->parts[i].offset,
			(int64_t)s->parts[i].bytes);
	return rc == SQLITE_DONE ? 0 : db_fail(e, err);
}

int vfm_energon_add(struct vfm_energon *e, const char *name, const struct vfm_scan *s, struct vfm_err *err)
{
	char *path = idx_path(e->dir, name);
	uint64_t *idx = idx_of(s);
	int rc = vfm_write_unsynced(path, idx, (s->n + 1) * sizeof(*idx), err);

	free(path);
	free(idx);
	for (size_t i = 0; rc >= 0 && i < s->n; i++)
		rc = add_sample(e, &s->samples[i], (int64_t)i, err);
	if (rc < 0)
		return rc;
	vfm_buf_addf(&e->counts, "%s\n    \"%s\": %zu", e->n_shards ? "," : "", name, s->n);
	vfm_buf_addf(&e->split, "  - \"%s\"\n", name);
	e->n_shards++;
	return 0;
}

static int write_meta(const struct vfm_energon *e, const char *name, const char *text, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", e->meta, name);
	int rc = vfm_write_file(path, text, strlen(text), err);

	free(path);
	return rc;
}

static int write_texts(const struct vfm_energon *e, const char *hex, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	char uuid[40];
	int rc;

	vfm_buf_addf(&b, "{\n  \"energon_version\": \"vfm %s\",\n  \"shard_counts\": {%s\n  }\n}\n", vfm_version(),
		e->counts.data ? e->counts.data : "");
	TRY_OUT(write_meta(e, ".info.json", b.data, err));
	vfm_buf_clear(&b);
	vfm_buf_addf(&b, "exclude: []\nsplit_parts:\n  train:\n%s  val: []\n  test: []\n",
		e->split.data ? e->split.data : "");
	TRY_OUT(write_meta(e, "split.yaml", b.data, err));
	TRY_OUT(write_meta(e, "dataset.yaml", "__module__: megatron.energon\n__class__: CrudeWebdataset\n", err));
	snprintf(uuid, sizeof(uuid), "%.8s-%.4s-4%.3s-a%.3s-%.12s", hex, hex + 8, hex + 13, hex + 17, hex + 20);
	rc = write_meta(e, "index.uuid", uuid, err);
out:
	vfm_buf_release(&b);
	return rc;
}

static int write_encoder_ids(
	const struct vfm_energon *e, const struct vfm_encoder_ids *encoder_ids, struct vfm_err *err)
{
	json_t *o = json_pack("{s:i,s:o}", "v", 1, "makers", vfm_encoder_ids_json(encoder_ids));
	int rc = vfm_json_save(e->meta, VFM_ENERGON_ENCODERS, o, 2, err);

	json_decref(o);
	return rc;
}

/* Syncs the database to disk before renaming it into place. */
static int place_db(struct vfm_energon *e, struct vfm_err *err)
{
	FILE *f;
	int rc = 0;

	sqlite3_finalize(e->sample);
	sqlite3_finalize(e->part);
	e->sample = e->part = NULL;
	if (sqlite3_exec(e->db, indexes, NULL, NULL, NULL) != SQLITE_OK)
		return sqlite3_errcode(e->db) == SQLITE_CONSTRAINT
			? vfm_fail(err, VFM_EINPUT, "'%s': two samples have one key: %s", e->db_path,
				  sqlite3_errmsg(e->db))
			: db_fail(e, err);
	if (sqlite3_close(e->db) != SQLITE_OK)
		return db_fail(e, err);
	e->db = NULL;
	f = fopen(e->db_tmp, "r+b");
	if (!f || fsync(fileno(f)) != 0 || rename(e->db_tmp, e->db_path) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", e->db_path);
	if (f)
		fclose(f);
	return rc;
}

int vfm_energon_commit(
	struct vfm_energon *e, const char *uuid_hex, const struct vfm_encoder_ids *encoder_ids, struct vfm_err *err)
{
	int rc = vfm_sync_folder(e->dir, err); /* one sync for the files of all shards */

	if (rc >= 0)
		rc = place_db(e, err);
	if (rc >= 0)
		rc = write_texts(e, uuid_hex, err);
	if (rc >= 0)
		rc = write_encoder_ids(e, encoder_ids, err);
	if (rc >= 0)
		rc = vfm_fsync_dir(e->meta, err);
	vfm_energon_abort(e);
	return rc;
}

/* ---- checking ---- */

int vfm_energon_check_idx(const char *dir, const char *name, const struct vfm_scan *s, struct vfm_err *err)
{
	size_t want = (s->n + 1) * sizeof(uint64_t), got;
	char *path = idx_path(dir, name), *data = NULL;
	uint64_t *idx = idx_of(s);
	int rc = vfm_read_regular(path, (size_t)1 << 32, &data, &got, err);

	if (rc == 0 && (got != want || memcmp(data, idx, want) != 0))
		rc = vfm_fail(err, VFM_EINPUT, "'%s' does not agree with the tar", path);
	free(data);
	free(idx);
	free(path);
	return rc;
}

static int check_info(const char *dir, const char *name, size_t n, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/.nv-meta/.info.json", dir);
	json_t *info = vfm_json_load(path, (size_t)1 << 30, err), *count;
	int rc = info ? 0 : err->code == VFM_EENV ? VFM_EENV : VFM_EINPUT;

	if (info) {
		count = json_object_get(json_object_get(info, "shard_counts"), name);
		if (!json_is_integer(count) || (size_t)json_integer_value(count) != n)
			rc = vfm_fail(err, VFM_EINPUT, "'%s' does not say that %s has %zu samples", path, name, n);
	}
	json_decref(info);
	free(path);
	return rc;
}

/* SQLite says "cannot open" for each reason; that of the system tells a missing file from missing descriptors. */
static int sqlite_code(sqlite3 *db)
{
	int code = db ? sqlite3_errcode(db) : SQLITE_NOMEM;

	if (code == SQLITE_NOMEM)
		return VFM_EENV;
	return code == SQLITE_CANTOPEN || code == SQLITE_IOERR ? vfm_errno_code(sqlite3_system_errno(db), VFM_EINPUT)
							       : VFM_EINPUT;
}

static bool row_is(sqlite3_stmt *q, const struct vfm_scan_sample *s, const struct vfm_scan_part *p)
{
	const char *key = (const char *)sqlite3_column_text(q, 0), *part = (const char *)sqlite3_column_text(q, 3);

	return key && part && strcmp(key, s->key) == 0 && strcmp(part, p->name) == 0 &&
		(uint64_t)sqlite3_column_int64(q, 1) == s->rec.sample_offset &&
		(uint64_t)sqlite3_column_int64(q, 2) == s->rec.sample_bytes &&
		(uint64_t)sqlite3_column_int64(q, 4) == p->offset && (uint64_t)sqlite3_column_int64(q, 5) == p->bytes;
}

/* Compares the next row with part k of sample i; i = s->n expects the end. */
static int check_next_row(
	sqlite3_stmt *q, const char *path, const struct vfm_scan *s, size_t i, int k, struct vfm_err *err)
{
	sqlite3 *db = sqlite3_db_handle(q);
	int step = sqlite3_step(q);

	if (step != SQLITE_ROW && step != SQLITE_DONE)
		return vfm_fail(err, sqlite_code(db), "cannot read '%s': %s", path, sqlite3_errmsg(db));
	if (i == s->n)
		return step == SQLITE_DONE ? 0 : vfm_fail(err, VFM_EINPUT, "'%s' has more samples than the tar", path);
	if (step == SQLITE_ROW && row_is(q, &s->samples[i], &s->samples[i].parts[k]))
		return 0;
	return vfm_fail(
		err, VFM_EINPUT, "'%s' does not agree with the tar on sample %zu ('%s')", path, i, s->samples[i].key);
}

static int check_db_rows(sqlite3 *db, const char *path, uint32_t shard, const struct vfm_scan *s, struct vfm_err *err)
{
	static const char sql[] =
		"SELECT sample_key, byte_offset, byte_size, part_name, content_byte_offset, content_byte_size "
		"FROM samples JOIN sample_parts USING (tar_file_id, sample_index) WHERE tar_file_id = ? "
		"ORDER BY sample_index, content_byte_offset";
	sqlite3_stmt *q = NULL;
	int rc = 0;

	if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
		return vfm_fail(err, sqlite_code(db), "'%s': %s", path, sqlite3_errmsg(db));
	sqlite3_bind_int64(q, 1, shard);
	for (size_t i = 0; rc == 0 && i < s->n; i++)
		for (int k = 0; rc == 0 && k < s->samples[i].n_parts; k++)
			rc = check_next_row(q, path, s, i, k, err);
	if (rc == 0)
		rc = check_next_row(q, path, s, s->n, 0, err);
	sqlite3_finalize(q);
	return rc;
}

int vfm_energon_check_meta(
	const char *dir, const char *name, uint32_t shard, const struct vfm_scan *s, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/.nv-meta/index.sqlite", dir);
	sqlite3 *db = NULL;
	int rc;

	if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
		rc = vfm_fail(
			err, sqlite_code(db), "cannot open '%s': %s", path, db ? sqlite3_errmsg(db) : "no memory");
	else
		rc = check_db_rows(db, path, shard, s, err);
	sqlite3_close(db);
	free(path);
	return rc < 0 ? rc : check_info(dir, name, s->n, err);
}

int vfm_energon_check_encoders(const char *dir, const struct vfm_encoder_ids *encoder_ids, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/.nv-meta/" VFM_ENERGON_ENCODERS, dir), *owner = vfm_strfmt("'%s'", path);
	json_t *o = vfm_json_load(path, (size_t)1 << 20, err);
	int rc = o ? 0 : err->code == VFM_EENV ? VFM_EENV : VFM_EINPUT;
	struct vfm_encoder_ids own;

	if (rc == 0 && vfm_encoder_ids_from_json(&own, json_object_get(o, "makers"), "makers", err) < 0) {
		vfm_err_context(err, "%s", owner);
		rc = VFM_EINPUT;
	}
	if (rc == 0 && vfm_encoder_ids_check(&own, owner, encoder_ids, "the index", err) < 0)
		rc = VFM_EINPUT;
	for (int e = 0; rc == 0 && e < VFM_ENCODER_KINDS; e++)
		if (!own.of[e].name[0] != !encoder_ids->of[e].name[0])
			rc = vfm_fail(err, VFM_EINPUT, "%s and the index: only one of them names the %s", owner,
				vfm_encoder_kinds[e].name);
	json_decref(o);
	free(owner);
	free(path);
	return rc;
}
