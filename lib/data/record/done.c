/* done.c - open addressing over the hashes of the keys; see done.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "data/record/done.h"
#include "data/record/provenance.h"
#include "data/record/stage.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"

#define MAX_GROUP_BYTES ((uint64_t)1 << 30)

struct done_entry {
	uint64_t hash; /* 0 = empty */
	uint64_t fingerprint;
	uint64_t offset, bytes;
	uint32_t lines, siblings; /* siblings: the lines of a complete group */
};

struct vfm_done {
	struct vfm_done_opts o;
	char *path;
	int fd;
	struct done_entry *table;
	size_t n, cap; /* cap is a power of two */
	json_t *chain;
};

static uint64_t hash_of(const char *key)
{
	uint64_t h = vfm_fnv64(key, strlen(key));

	return h ? h : 1;
}

static struct done_entry *find_entry(const struct vfm_done *d, uint64_t hash)
{
	size_t i = (size_t)(hash ^ hash >> 29) & (d->cap - 1);

	while (d->table[i].hash && d->table[i].hash != hash)
		i = (i + 1) & (d->cap - 1);
	return &d->table[i];
}

static void grow_entries(struct vfm_done *d)
{
	struct done_entry *old = d->table;
	size_t n = d->cap;

	if (d->cap && d->n * 4 < d->cap * 3)
		return;
	d->cap = n ? n * 2 : 1024;
	d->table = vfm_calloc(d->cap, sizeof(d->table[0]));
	for (size_t i = 0; i < n; i++)
		if (old[i].hash)
			*find_entry(d, old[i].hash) = old[i];
	free(old);
}

const char *vfm_done_fingerprint(const json_t *rec, const char *stage)
{
	return vfm_rec_str(json_object_get(rec, "by"), stage, NULL);
}

/* Returns 0 for text that is not 16 hexadecimal digits. */
static uint64_t parse_fingerprint(const char *fingerprint)
{
	return fingerprint && strlen(fingerprint) == VFM_FINGERPRINT_TEXT - 1 &&
			strspn(fingerprint, "0123456789abcdef") == VFM_FINGERPRINT_TEXT - 1
		? strtoull(fingerprint, NULL, 16)
		: 0;
}

/* Returns the number of records of the parent of a record. */
static uint32_t count_siblings(const json_t *rec)
{
	json_int_t clips = json_integer_value(json_object_get(rec, "siblings")),
		   transitions = json_integer_value(json_object_get(rec, "transitions"));

	if (clips < 0 || transitions < 0 || clips > INT32_MAX || transitions > INT32_MAX || clips + transitions < 1)
		return 1;
	return (uint32_t)(clips + transitions);
}

static void add_record(struct vfm_done *d, const json_t *rec, uint64_t start, uint64_t end)
{
	const char *key = vfm_rec_key(rec, d->o.key);
	/* Only a stage with several outputs per input checks their number; later stages just copy the keys. */
	bool group = d->o.key && !strcmp(d->o.key, "parent") && json_object_get(rec, "parent");
	uint64_t fingerprint = parse_fingerprint(vfm_done_fingerprint(rec, d->o.stage));
	struct done_entry *e;

	if (!key || json_object_get(rec, "error") || vfm_rec_check_version(rec, NULL) < 0)
		return;
	grow_entries(d);
	e = find_entry(d, hash_of(key));
	if (e->hash && e->fingerprint == fingerprint && e->offset + e->bytes == start &&
		e->lines < e->siblings) { /* of its group */
		e->bytes = end - e->offset;
		e->lines++;
		return;
	}
	if (e->hash && !fingerprint) /* a duplicate that was dropped does not replace the first */
		return;
	d->n += !e->hash;
	*e = (struct done_entry){
		.hash = hash_of(key), .fingerprint = fingerprint, .offset = start, .bytes = end - start, .lines = 1};
	e->siblings = group ? count_siblings(rec) : 1;
}

static int read_index(struct vfm_done *d, struct vfm_err *err)
{
	struct vfm_jsonl r = {0};
	int64_t bad = 0;
	json_t *rec = NULL;
	off_t start = 0;
	int rc;

	TRY(vfm_jsonl_open(&r, d->path, err));
	while ((rc = vfm_jsonl_next(&r, &rec, err)) != 0) {
		off_t end = ftello(r.f);

		if (rc == VFM_EINPUT) {
			bad++;
		} else if (rc < 0) {
			break;
		} else if (vfm_provenance_is_header(rec)) {
			bad += vfm_provenance_read(d->chain, rec, NULL) < 0;
			json_decref(rec);
		} else {
			add_record(d, rec, (uint64_t)start, (uint64_t)end);
			json_decref(rec);
		}
		start = end;
	}
	vfm_jsonl_close(&r);
	if (bad)
		vfm_warn("%s: %lld lines are no records and are left out", d->path, (long long)bad);
	return rc < 0 ? rc : 0;
}

int vfm_done_open(struct vfm_done **out, const char *path, const struct vfm_done_opts *o, struct vfm_err *err)
{
	struct vfm_done *d = vfm_calloc(1, sizeof(*d));
	int rc = 0;

	d->path = vfm_strdup(path);
	d->o = *o;
	d->chain = json_array();
	grow_entries(d);
	d->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
	if (d->fd < 0 && errno != ENOENT)                      /* absent: the first run */
		rc = vfm_fail_errno(err, VFM_EUSAGE, "--done: cannot open '%s'", path);
	else if (d->fd >= 0 && lseek(d->fd, 0, SEEK_CUR) < 0)
		rc = vfm_fail(
			err, VFM_EUSAGE, "--done: '%s' is a pipe, which cannot be read twice: expected a file", path);
	else if (d->fd >= 0)
		rc = read_index(d, err);
	if (rc < 0) {
		vfm_done_close(d);
		return rc;
	}
	*out = d;
	return 0;
}

const json_t *vfm_done_chain(const struct vfm_done *d)
{
	return d->chain;
}

/* Counts the files that a value names, or returns -1 if one does not exist. */
static int count_files(const json_t *value)
{
	const char *name = json_string_value(value), *key;
	int files = 0, n;
	json_t *v;

	if (name)
		return access(name, F_OK) == 0 ? 1 : -1;
	json_object_foreach((json_t *)value, key, v)
	{
		n = json_is_object(v) || strcmp(key, "path") == 0 ? count_files(v) : 0;
		if (n < 0)
			return -1;
		files += n;
	}
	return files;
}

static bool has_outputs(const struct vfm_done *d, const json_t *rec)
{
	for (const char *const *path = d->o.outputs; path && *path; path++)
		if (!json_is_null(vfm_rec_at(rec, *path)) && count_files(vfm_rec_at(rec, *path)) < 1)
			return false;
	return true;
}

/* Returns whether the record on the first line of an entry has the key: another key may have the same hash. */
static bool is_entry_of(struct vfm_done *d, const json_t *rec, const char *key)
{
	const char *found = vfm_rec_key(rec, d->o.key);

	return found && !strcmp(found, key);
}

int vfm_done_copy(struct vfm_done *d, const char *key, const char *fingerprint, struct vfm_buf *text,
	struct vfm_done_found *found, struct vfm_err *err)
{
	struct done_entry e = *find_entry(d, hash_of(key));
	const char *newline;
	json_t *rec;
	char *data;
	int rc;

	*found = (struct vfm_done_found){.stale = e.hash && e.fingerprint != parse_fingerprint(fingerprint)};
	if (!e.hash || found->stale || e.lines < e.siblings || e.bytes > MAX_GROUP_BYTES)
		return 0;
	data = vfm_malloc(e.bytes + 1);
	rc = vfm_full_pread(d->fd, data, e.bytes, e.offset, d->path, err);
	data[rc < 0 ? 0 : e.bytes] = 0;
	newline = memchr(data, '\n', e.bytes);
	rec = rc < 0 || !newline ? NULL : json_loadb(data, (size_t)(newline - data), 0, NULL);
	if (rec && is_entry_of(d, rec, key)) { /* else: another key, or blank lines before it */
		found->stale = !has_outputs(d, rec);
		found->lines = found->stale ? 0 : e.lines;
	}
	if (found->lines) {
		vfm_buf_add(text, data, e.bytes);
		if (data[e.bytes - 1] != '\n')
			vfm_buf_add(text, "\n", 1);
	}
	json_decref(rec);
	free(data);
	return rc < 0 ? rc : 0;
}

void vfm_done_close(struct vfm_done *d)
{
	if (!d)
		return;
	if (d->fd >= 0)
		close(d->fd);
	json_decref(d->chain);
	free(d->table);
	free(d->path);
	free(d);
}
