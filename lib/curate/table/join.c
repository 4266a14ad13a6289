/* join.c - keeps the rows of the table in a temporary file, and finds them by key in memory. */
#include "curate/table/join.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "curate/table/rows.h"
#include "curate/table/take.h"
#include "data/record/record.h"
#include "data/record/sample_key.h"
#include "data/record/sample_set.h"
#include "data/record/stage.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/input.h"
#include "io/json.h"

/* A row in the temporary file: this head, and the values as JSON. */
struct stored {
	int64_t place;
	uint64_t values_len;
};

struct vfm_join {
	struct vfm_join_opts o;
	char *key, *column; /* of a record; of the table */
	enum { WHOLE, NAME, STEM } form;
	struct vfm_take take;
	char *settings;
	FILE *store;
	uint64_t store_len;
	bool is_loaded;             /* all of it is in the file */
	pthread_mutex_t lock;       /* guards keys and stats, once it is loaded */
	struct vfm_sample_set keys; /* place: offset of the row; content: 1 once it is joined */
	struct vfm_table_join_stats stats;
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

static int write_row(struct vfm_join *j, int64_t place, const json_t *values, struct vfm_err *err)
{
	struct vfm_buf text = {0};
	struct stored head = {.place = place};
	bool ok;

	vfm_json_text(&text, values, 0);
	head.values_len = text.len;
	ok = fwrite(&head, sizeof(head), 1, j->store) == 1 && fwrite(text.data, 1, text.len, j->store) == text.len;
	j->store_len += sizeof(head) + text.len;
	vfm_buf_release(&text);
	return ok ? 0 : fail_store(err);
}

/* Reads the row at an offset; the caller frees its values, a text. */
static int read_row_at(const struct vfm_join *j, uint64_t at, struct stored *head, char **values, struct vfm_err *err)
{
	static const char what[] = "the temporary file of the table";

	if (!j->is_loaded && fflush(j->store) != 0)
		return fail_store(err);
	TRY(vfm_full_pread(fileno(j->store), head, sizeof(*head), at, what, err));
	*values = vfm_malloc(head->values_len + 1);
	(*values)[head->values_len] = 0;
	return vfm_full_pread(fileno(j->store), *values, head->values_len, at + sizeof(*head), what, err);
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
	struct vfm_sample_seen row = {.place = (int64_t)j->store_len}, first;
	struct stored was;
	char *was_values = NULL;
	int rc;

	vfm_sample_hash(key, row.hash);
	rc = vfm_sample_set_add(&j->keys, &row, &first, err);
	if (rc == 0)
		return write_row(j, place, values, err);
	if (rc == 1)
		rc = read_row_at(j, (uint64_t)first.place, &was, &was_values, err);
	if (rc == 0)
		rc = check_same_key(j, key, place, &was, was_values, values, err);
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
	pthread_mutex_init(&j->lock, NULL);
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
	vfm_sample_set_release(&j->keys);
	pthread_mutex_destroy(&j->lock);
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
	pthread_mutex_lock(&j->lock);
	j->stats.without_row++;
	pthread_mutex_unlock(&j->lock);
	if (j->o.missing == VFM_JOIN_KEEP)
		return 0;
	if (j->o.missing == VFM_JOIN_FAIL)
		return key ? vfm_fail(err, VFM_EINPUT, "the table has no row with the %s '%s'", name, text)
			   : vfm_fail(err, VFM_EINPUT, "the record has no %s", name);
	if (key)
		vfm_stage_drop(rec, "join", "no row with its %s", name);
	else
		vfm_stage_drop(rec, "join", "%s is missing", name);
	return 0;
}

/* Counts the row of a key, once. */
static int note_used(struct vfm_join *j, struct vfm_sample_seen *row, struct vfm_err *err)
{
	int rc;

	pthread_mutex_lock(&j->lock);
	rc = vfm_sample_set_find(&j->keys, row->hash, row, err);
	if (rc == 1 && !row->content) {
		row->content = 1;
		j->stats.used++;
		rc = vfm_sample_set_put(&j->keys, row, true, err);
	}
	pthread_mutex_unlock(&j->lock);
	return rc < 0 ? VFM_EENV : 0;
}

static int join_row(struct vfm_join *j, json_t *rec, struct vfm_sample_seen *row, struct vfm_err *err)
{
	struct stored head;
	char *text = NULL;
	json_t *values = NULL;
	int rc = VFM_EENV; /* the temporary file */

	if (read_row_at(j, (uint64_t)row->place, &head, &text, err) == 0)
		values = vfm_json_parse(text, head.values_len, "the temporary file of the table", err);
	if (values)
		rc = vfm_take_set(rec, values, j->o.overwrite, err);
	if (rc == 0 && !row->content)
		rc = note_used(j, row, err);
	json_decref(values);
	free(text);
	return rc;
}

int vfm_join_record(struct vfm_join *j, json_t *rec, struct vfm_err *err)
{
	char *key = key_of_record(j, rec);
	struct vfm_sample_seen row = {0};
	int rc = 0;

	if (key && *key) {
		vfm_sample_hash(key, row.hash);
		pthread_mutex_lock(&j->lock);
		rc = vfm_sample_set_find(&j->keys, row.hash, &row, err);
		pthread_mutex_unlock(&j->lock);
	}
	if (rc >= 0)
		rc = rc == 1 ? join_row(j, rec, &row, err) : pass_without_row(j, rec, key, err);
	free(key);
	return rc;
}

const struct vfm_table_join_stats *vfm_join_stats(const struct vfm_join *j)
{
	return &j->stats;
}
