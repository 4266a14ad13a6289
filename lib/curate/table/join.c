#include "curate/table/join.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "curate/table/rows.h"
#include "curate/table/take.h"
#include "data/record/record.h"
#include "data/record/stage.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/twice.h"

/* A row in the temporary file: this head, the key and the values as JSON. */
struct stored {
	int64_t place;
	uint32_t key_len, values_len;
};

struct join_slot {
	uint64_t hash;
	_Atomic uint64_t at; /* offset of the row in the temporary file + 1; 0: free; the highest bit: it is used */
};

#define USED ((uint64_t)1 << 63)

struct vfm_join {
	struct vfm_join_opts o;
	char *key, *column; /* of a record; of the table */
	enum { WHOLE, NAME, STEM } form;
	struct vfm_take take;
	char *settings;
	FILE *store;
	uint64_t store_len;
	bool is_loaded; /* all of it is in the file */
	struct join_slot *slots;
	size_t n, cap;
	struct vfm_table_join_stats stats;
	_Atomic int64_t used, without_row;
	const char *bad_type; /* of the first value of the column that cannot be a key; NULL: there is none */
	int64_t bad_place;    /* its row */
};

/* ---- keys ---- */

/* Returns the type of a value that key_text() refuses for its type; NULL: it has another reason. */
static const char *bad_key_type(const json_t *v)
{
	return json_is_array(v)      ? "a list"
		: json_is_object(v)  ? "an object"
		: json_is_boolean(v) ? "true or false"
				     : NULL;
}

/* Returns the key of a text or number, which the caller frees; NULL of other values and of an empty text. */
static char *key_text(const json_t *v)
{
	char real[VFM_REAL_TEXT];
	double x;

	if (json_is_string(v))
		return *json_string_value(v) ? vfm_strdup(json_string_value(v)) : NULL;
	if (json_is_integer(v))
		return vfm_strfmt("%" JSON_INTEGER_FORMAT, json_integer_value(v));
	if (!json_is_real(v))
		return NULL;
	x = json_real_value(v);
	if (x == floor(x) && fabs(x) < 0x1p53)
		return vfm_strfmt("%" PRId64, (int64_t)x);
	return vfm_strdup(vfm_real_text(real, x));
}

static char *key_of_record(const struct vfm_join *j, const json_t *rec)
{
	char *key = key_text(vfm_take_value(rec, j->key)), *slash, *dot, *name;

	if (!key || j->form == WHOLE)
		return key;
	slash = strrchr(key, '/');
	name = vfm_strdup(slash ? slash + 1 : key);
	free(key);
	dot = j->form == STEM ? strrchr(name, '.') : NULL;
	if (dot && dot > name)
		*dot = 0;
	return name;
}

/* FNV's low bits alone are weak. */
static uint64_t hash_key(const char *key)
{
	uint64_t h = vfm_fnv64(key, strlen(key));

	h ^= h >> 32;
	h *= 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

/* Reads "KEY[:name|:stem][=COLUMN]". */
static int parse_on(struct vfm_join *j, const char *on, struct vfm_err *err)
{
	const char *eq = strchr(on, '='), *last;
	char *form;

	j->key = vfm_strfmt("%.*s", (int)(eq ? eq - on : (ptrdiff_t)strlen(on)), on);
	form = strrchr(j->key, ':');
	if (form && (!strcmp(form, ":name") || !strcmp(form, ":stem"))) {
		j->form = form[1] == 'n' ? NAME : STEM;
		*form = 0;
	}
	last = strrchr(j->key, '.');
	if (!*j->key || (eq && !eq[1]) || (!eq && j->form != WHOLE))
		return vfm_fail(err, VFM_EUSAGE,
			"--on: expected KEY, KEY=COLUMN, KEY:name=COLUMN or KEY:stem=COLUMN, got '%s'", on);
	j->column = vfm_strdup(eq ? eq + 1 : last ? last + 1 : j->key);
	return 0;
}

/* ---- rows in the temporary file ---- */

static int fail_store(struct vfm_err *err)
{
	return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of the table (TMPDIR)");
}

static int write_row(struct vfm_join *j, int64_t place, const char *key, const json_t *values, struct vfm_err *err)
{
	struct vfm_buf text = {0};
	struct stored head = {.place = place, .key_len = (uint32_t)strlen(key)};
	bool ok;

	vfm_json_text(&text, values, 0);
	head.values_len = (uint32_t)text.len;
	ok = fwrite(&head, sizeof(head), 1, j->store) == 1 && fwrite(key, 1, head.key_len, j->store) == head.key_len &&
		fwrite(text.data, 1, text.len, j->store) == text.len;
	j->store_len += sizeof(head) + head.key_len + text.len;
	vfm_buf_release(&text);
	return ok ? 0 : fail_store(err);
}

/* Reads the row at an offset if its key is `key`: returns 1 with its values as text, which the caller frees; else 0. */
static int read_row_at(
	const struct vfm_join *j, uint64_t at, const char *key, struct stored *head, char **values, struct vfm_err *err)
{
	char first[4096], *all = NULL;
	size_t len = strlen(key), n = sizeof(*head) + len, have;
	int rc = 0;

	*values = NULL;
	if (!j->is_loaded && fflush(j->store) != 0)
		return fail_store(err);
	have = j->store_len - at < sizeof(first) ? j->store_len - at : sizeof(first);
	TRY(vfm_full_pread(fileno(j->store), first, have, at, "the temporary file of the table", err));
	memcpy(head, first, sizeof(*head));
	if (head->key_len != len)
		return 0;
	n += head->values_len;
	all = vfm_malloc(n + 1);
	if (n <= have)
		memcpy(all, first, n);
	else
		rc = vfm_full_pread(fileno(j->store), all, n, at, "the temporary file of the table", err);
	if (rc == 0 && !memcmp(all + sizeof(*head), key, len)) {
		*values = vfm_strfmt("%.*s", (int)head->values_len, all + sizeof(*head) + len);
		rc = 1;
	}
	free(all);
	return rc;
}

/* ---- the hash table ---- */

static int grow_slots(struct vfm_join *j, struct vfm_err *err)
{
	size_t cap = j->cap ? 2 * j->cap : 1024;
	struct join_slot *slots = vfm_big_alloc(cap * sizeof(*slots), "hash table of the rows", err);

	if (!slots)
		return VFM_EENV;
	memset((void *)slots, 0, cap * sizeof(*slots));
	for (size_t i = 0; i < j->cap; i++) {
		size_t k = j->slots[i].hash & (cap - 1);

		if (!j->slots[i].at)
			continue;
		while (slots[k].at)
			k = (k + 1) & (cap - 1);
		slots[k].hash = j->slots[i].hash;
		slots[k].at = j->slots[i].at;
	}
	vfm_big_free(j->slots, j->cap * sizeof(*slots));
	j->slots = slots;
	j->cap = cap;
	return 0;
}

/* Finds the row of a key: returns 1 with its slot and its values as text, or 0 with the free slot for it. */
static int find_row(const struct vfm_join *j, const char *key, uint64_t hash, size_t *slot, struct stored *head,
	char **values, struct vfm_err *err)
{
	int rc;

	*values = NULL;
	for (*slot = hash & (j->cap - 1);; *slot = (*slot + 1) & (j->cap - 1)) {
		uint64_t at = j->slots[*slot].at & ~USED;

		if (!at)
			return 0;
		if (j->slots[*slot].hash != hash)
			continue;
		rc = read_row_at(j, at - 1, key, head, values, err);
		if (rc != 0)
			return rc;
	}
}

/* ---- reading the table ---- */

/* Of two rows with a key. */
static int check_same_key(struct vfm_join *j, const char *key, int64_t place, const struct stored *was,
	const char *was_values, const json_t *values, struct vfm_err *err)
{
	char short_key[VFM_SHORT_TEXT];
	struct vfm_buf text = {0};
	bool same;

	vfm_json_text(&text, values, 0);
	same = !strcmp(text.data, was_values);
	vfm_buf_release(&text);
	j->stats.same++;
	if (same || j->o.first)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"'%s': lines %lld and %lld have the %s '%s', but other values (--first takes the first)", j->o.table,
		(long long)was->place, (long long)place, j->column, vfm_short_text(short_key, key));
}

static int store_row(struct vfm_join *j, const char *key, const json_t *values, int64_t place, struct vfm_err *err)
{
	uint64_t hash = hash_key(key), at = j->store_len;
	struct stored was;
	char *was_values;
	size_t slot;
	int rc;

	if (4 * (j->n + 1) > 3 * j->cap)
		TRY(grow_slots(j, err));
	rc = find_row(j, key, hash, &slot, &was, &was_values, err);
	if (rc == 1)
		rc = check_same_key(j, key, place, &was, was_values, values, err);
	else if (rc == 0) {
		rc = write_row(j, place, key, values, err);
		j->slots[slot].hash = hash;
		j->slots[slot].at = at + 1;
		j->n++;
	}
	free(was_values);
	return rc;
}

static int take_table_row(struct vfm_join *j, const json_t *row, int64_t place, struct vfm_err *err)
{
	const json_t *value = vfm_take_value(row, j->column);
	char *key = key_text(value);
	json_t *values = NULL;
	int rc = 0;

	j->stats.rows++;
	if (!key) {
		j->stats.without_key++;
		if (!j->bad_type) {
			j->bad_type = bad_key_type(value);
			j->bad_place = place;
		}
		return 0;
	}
	rc = vfm_take_row(&j->take, row, &values, err);
	if (rc < 0)
		vfm_err_context(err, "'%s', line %lld", j->o.table, (long long)place);
	else
		rc = store_row(j, key, values, place, err);
	json_decref(values);
	free(key);
	return rc;
}

static int read_table(struct vfm_join *j, struct vfm_rows *rows, struct vfm_err *err)
{
	const char *unseen;
	json_t *row;
	int rc;

	TRY(vfm_take_init(&j->take, rows, &j->o.take, &j->o.numbers, j->column, false, err));
	while ((rc = vfm_rows_next(rows, &row, err)) == 1) {
		rc = take_table_row(j, row, rows->place, err);
		json_decref(row);
		if (rc < 0)
			return rc;
	}
	TRY(rc);
	if (j->stats.without_key == j->stats.rows && j->bad_type)
		return vfm_fail(err, VFM_EUSAGE, "'%s', line %lld: %s is %s, not a text or number (--on KEY=COLUMN)",
			j->o.table, (long long)j->bad_place, j->column, j->bad_type);
	if (j->stats.rows && j->stats.without_key == j->stats.rows)
		return vfm_fail(err, VFM_EUSAGE, "'%s': no row has a %s (--on KEY=COLUMN)", j->o.table, j->column);
	unseen = vfm_take_unseen(&j->take);
	if (unseen && j->stats.rows && !j->take.all)
		return vfm_fail(err, VFM_EUSAGE, "'%s': no row has a value in column '%s'", j->o.table, unseen);
	j->is_loaded = true;
	return fflush(j->store) == 0 ? 0 : fail_store(err);
}

/* The digest covers the bytes of the table: they must not change while it is read. */
static int check_table_unchanged(const char *path, const char *name, const struct stat *was, struct vfm_err *err)
{
	struct stat now;

	if (stat(path, &now) != 0)
		return vfm_fail_errno(err, VFM_EUSAGE, "cannot read '%s'", name);
	if (now.st_size != was->st_size || now.st_ino != was->st_ino || now.st_mtim.tv_sec != was->st_mtim.tv_sec ||
		now.st_mtim.tv_nsec != was->st_mtim.tv_nsec)
		return vfm_fail(err, VFM_EUSAGE, "'%s' changed while it was read", name);
	return 0;
}

static char *describe_join(const struct vfm_join *j, const char *digest)
{
	static const char *const forms[] = {"", ":name", ":stem"}, *const missing[] = {"keep", "drop", "fail"};
	struct vfm_buf b = {0};

	vfm_buf_addf(&b, "table sha256 %s on %s%s=%s ", digest, j->key, forms[j->form], j->column);
	vfm_take_describe(&j->take, &b);
	vfm_buf_addf(&b, " missing %s", missing[j->o.missing]);
	if (j->o.sep)
		vfm_buf_addf(&b, " sep %d", j->o.sep);
	vfm_buf_adds(&b, j->o.first ? " first" : "");
	vfm_buf_adds(&b, j->o.overwrite ? " overwrite" : "");
	return b.data;
}

static int load_table(struct vfm_join *j, struct vfm_twice *file, struct vfm_err *err)
{
	struct vfm_rows rows = {0};
	char hex[VFM_SHA256_HEX];
	struct stat st;
	int rc = 0;

	TRY(vfm_twice_open(file, (char *const *)&j->o.table, 1, err));
	if (stat(file->paths[0], &st) != 0)
		return vfm_fail_errno(err, VFM_EUSAGE, "cannot read '%s'", j->o.table);
	TRY(vfm_unlinked_temp(&j->store, err));
	TRY(grow_slots(j, err));
	TRY_OUT(vfm_rows_open(&rows, file->paths[0], j->o.table, j->o.sep, err));
	TRY_OUT(read_table(j, &rows, err));
	TRY_OUT(vfm_sha256_file(file->paths[0], NULL, hex, err));
	TRY_OUT(check_table_unchanged(file->paths[0], j->o.table, &st, err));
	j->settings = describe_join(j, hex);
out:
	vfm_rows_close(&rows);
	return rc;
}

int vfm_join_open(struct vfm_join **out, const struct vfm_join_opts *o, struct vfm_err *err)
{
	struct vfm_join *j = vfm_calloc(1, sizeof(*j));
	struct vfm_twice file = {0};
	int rc;

	*out = NULL;
	j->o = *o;
	rc = parse_on(j, o->on ? o->on : "id", err);
	if (rc == 0) {
		rc = load_table(j, &file, err);
		vfm_twice_close(&file);
	}
	if (rc < 0) {
		vfm_join_close(j);
		if (rc == VFM_EINPUT && err) /* no record is to blame */
			err->code = VFM_EUSAGE;
		return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
	}
	*out = j;
	return 0;
}

void vfm_join_close(struct vfm_join *j)
{
	if (!j)
		return;
	vfm_take_release(&j->take);
	vfm_big_free(j->slots, j->cap * sizeof(j->slots[0]));
	if (j->store)
		fclose(j->store);
	free(j->key);
	free(j->column);
	free(j->settings);
	free(j);
}

const char *vfm_join_settings(const struct vfm_join *j)
{
	return j->settings;
}

/* ---- records ---- */

static int pass_without_row(struct vfm_join *j, json_t *rec, const char *key, struct vfm_err *err)
{
	char text[VFM_SHORT_TEXT], name[VFM_SHORT_TEXT];

	vfm_short_text(name, key ? j->column : j->key);
	vfm_short_text(text, key ? key : "");
	atomic_fetch_add(&j->without_row, 1);
	if (j->o.missing == VFM_JOIN_KEEP)
		return 0;
	if (j->o.missing == VFM_JOIN_FAIL)
		return key ? vfm_fail(err, VFM_EINPUT, "the table has no row with the %s '%s'", name, text)
			   : vfm_fail(err, VFM_EINPUT, "the record has no %s", name);
	if (key)
		vfm_stage_drop(rec, "join", "no row with the %s '%s'", name, text);
	else
		vfm_stage_drop(rec, "join", "%s is missing", name);
	return 0;
}

static int join_values(struct vfm_join *j, json_t *rec, const char *text, size_t slot, struct vfm_err *err)
{
	json_t *values = vfm_json_parse(text, strlen(text), "the temporary file of the table", err);
	int rc;

	if (!values)
		return VFM_EENV;
	rc = vfm_take_set(rec, values, j->o.overwrite, err);
	json_decref(values);
	if (rc == 0 && !(atomic_fetch_or(&j->slots[slot].at, USED) & USED))
		atomic_fetch_add(&j->used, 1);
	return rc;
}

int vfm_join_record(struct vfm_join *j, json_t *rec, struct vfm_err *err)
{
	char *key = key_of_record(j, rec), *values = NULL;
	struct stored head;
	size_t slot = 0;
	int rc = 0;

	if (key && *key)
		rc = find_row(j, key, hash_key(key), &slot, &head, &values, err);
	if (rc == 1)
		rc = join_values(j, rec, values, slot, err);
	else if (rc == 0)
		rc = pass_without_row(j, rec, key, err);
	else
		rc = VFM_EENV; /* the temporary file */
	free(values);
	free(key);
	return rc;
}

void vfm_join_get_stats(const struct vfm_join *j, struct vfm_table_join_stats *s)
{
	*s = j->stats;
	s->used = j->used;
	s->without_row = j->without_row;
	s->bytes = (int64_t)(j->cap * sizeof(struct join_slot));
}
