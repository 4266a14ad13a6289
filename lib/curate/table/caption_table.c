/* caption_table.c - reads the formats of caption tables into one index of names. */
#include "curate/table/caption_table.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/installed.h"
#include "base/mem.h"
#include "curate/table/caption_value.h"
#include "curate/table/rows.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "io/process.h"
#include "media/av/probe.h"

static const char no_columns[] = "it has no column file_name, path or video_path";

enum { MAX_OBJECT_BYTES = 256 << 20, MAX_LIST_BYTES = 1 << 30 };

char *vfm_plain_path(const char *path)
{
	char *plain = vfm_malloc(strlen(path) + 1), *to = plain;
	bool begins = true;

	for (const char *p = path; *p;) {
		if (begins && p[0] == '.' && (p[1] == '/' || (p[1] == 0 && to > plain))) {
			p += p[1] ? 2 : 1;
			continue;
		}
		if (begins && *p == '/' && to > plain) {
			p++;
			continue;
		}
		begins = *p == '/';
		*to++ = *p++;
	}
	*to = 0;
	return plain;
}

/* ---- rows ---- */

static int fail_caption_store(struct vfm_err *err)
{
	return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of captions (TMPDIR)");
}

static int store_caption(struct vfm_caption_row *r, const json_t *caption, FILE *store, struct vfm_err *err)
{
	struct vfm_buf text = {0};
	bool ok;

	if (!caption)
		return 0;
	vfm_buf_adds(&text, "[");
	vfm_json_text(&text, caption, 0);
	vfm_buf_adds(&text, "]");
	ok = fseeko(store, 0, SEEK_END) == 0;
	r->at = (uint64_t)ftello(store);
	r->len = text.len;
	ok = ok && fwrite(text.data, 1, text.len, store) == text.len;
	vfm_buf_release(&text);
	return ok ? 0 : fail_caption_store(err);
}

int vfm_caption_table_get(
	const struct vfm_caption_table *t, int64_t i, FILE *store, json_t **caption, struct vfm_err *err)
{
	const struct vfm_caption_row *r = &t->rows[i];
	json_t *list;
	char *text;
	int rc;

	*caption = NULL;
	if (!r->len)
		return 0;
	if (fflush(store) != 0)
		return fail_caption_store(err);
	text = vfm_malloc(r->len + 1);
	rc = vfm_full_pread(fileno(store), text, r->len, r->at, "the temporary file of captions", err);
	if (rc == 0) {
		list = vfm_json_parse(text, r->len, "a caption", err);
		*caption = json_incref(json_array_get(list, 0));
		json_decref(list);
	}
	free(text);
	return rc < 0 ? VFM_EENV : 0;
}

/* Of two rows with a name: the same caption is no fault. */
static int check_same_file(const struct vfm_caption_table *t, int64_t i, const json_t *caption, int64_t place,
	FILE *store, struct vfm_err *err)
{
	json_t *was;
	bool same;

	TRY(vfm_caption_table_get(t, i, store, &was, err));
	same = caption ? json_equal(was, caption) : !was;
	json_decref(was);
	if (same)
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "'%s': lines %lld and %lld have different captions of '%.200s'", t->path,
		(long long)t->rows[i].place, (long long)place, vfm_names_at(&t->names, i));
}

/* Adds a row; takes the reference of its caption. */
static int add_caption_row(
	struct vfm_caption_table *t, const char *name, json_t *caption, int64_t place, FILE *store, struct vfm_err *err)
{
	char *plain = vfm_plain_path(name);
	int64_t i = vfm_names_add(&t->names, plain), was = i < 0 ? vfm_names_find(&t->names, plain) : -1;
	int rc;

	if (i >= 0) {
		vfm_grow(&t->rows, &t->rows_cap, (size_t)t->names.n, sizeof(t->rows[0]));
		t->rows[i] = (struct vfm_caption_row){.place = place};
		rc = store_caption(&t->rows[i], caption, store, err);
	} else if (was >= 0) {
		rc = check_same_file(t, was, caption, place, store, err);
	} else {
		rc = vfm_fail(err, VFM_EUSAGE, "'%s' has more than 2^31 rows", t->path);
	}
	free(plain);
	json_decref(caption);
	return rc;
}

/* ---- rows of a table ---- */

/* Makes CSV yield the columns of names and captions. */
static int select_caption_columns(struct vfm_rows *r, struct vfm_err *err)
{
	bool *wanted;
	int rc;

	if (r->n_columns < 0)
		return 0;
	wanted = vfm_calloc((size_t)r->n_columns + 1, sizeof(*wanted));
	for (int i = 0; i < r->n_columns; i++) {
		for (const char *const *k = vfm_caption_file_keys; *k; k++)
			wanted[i] |= !strcmp(r->columns[i], *k);
		for (const char *const *k = vfm_caption_keys; *k; k++)
			wanted[i] |= !strcmp(r->columns[i], *k);
	}
	rc = vfm_rows_select(r, wanted, err);
	free(wanted);
	return rc;
}

static int read_caption_row(
	struct vfm_caption_table *t, const struct vfm_rows *r, const json_t *row, FILE *store, struct vfm_err *err)
{
	const json_t *name = vfm_caption_at(row, vfm_caption_file_keys);
	char *what = vfm_strfmt("'%s', line %lld", t->path, (long long)r->place);
	json_t *caption = NULL;
	int rc;

	if (!json_is_string(name) || !json_string_length(name))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no name of a file (a column file_name, path or video_path)", what);
	else
		rc = vfm_caption_of_json(&caption, vfm_caption_at(row, vfm_caption_keys), what, err);
	if (rc == 0)
		rc = add_caption_row(t, json_string_value(name), caption, r->place, store, err);
	free(what);
	return rc;
}

/* Returns whether a table has a column of names: by its header, or by a row of JSON. */
static bool has_caption_columns(const struct vfm_rows *r, const json_t *row)
{
	bool has = row && vfm_caption_at(row, vfm_caption_file_keys);

	for (int i = 0; i < r->n_columns; i++)
		for (const char *const *k = vfm_caption_file_keys; *k; k++)
			has |= !strcmp(r->columns[i], *k);
	return has;
}

/* Returns 1, or 0 if it is no table of captions. */
static int read_caption_rows(
	struct vfm_caption_table *t, struct vfm_rows *r, FILE *store, bool maybe, struct vfm_err *err)
{
	bool is_known = !maybe || has_caption_columns(r, NULL);
	json_t *row;
	int rc;

	if (!is_known && r->n_columns >= 0) {
		vfm_fail(err, VFM_EINPUT, "%s", no_columns);
		return 0;
	}
	TRY(select_caption_columns(r, err));
	while ((rc = vfm_rows_next(r, &row, err)) == 1) {
		if (!is_known && !has_caption_columns(r, row)) {
			vfm_fail(err, VFM_EINPUT, "%s", no_columns);
			json_decref(row);
			return 0;
		}
		is_known = true;
		rc = read_caption_row(t, r, row, store, err);
		json_decref(row);
		if (rc < 0)
			break;
	}
	return rc < 0 ? rc : 1;
}

static int open_rows(struct vfm_caption_table *t, const char *path, FILE *store, bool maybe, struct vfm_err *err)
{
	struct vfm_rows rows = {0};
	int rc = vfm_rows_open(&rows, path, t->path, 0, err);

	if (rc == 0)
		rc = read_caption_rows(t, &rows, store, maybe, err);
	vfm_rows_close(&rows);
	return rc;
}

/* ---- Parquet ---- */

/* Runs table_parquet.py on a file, with its output in a file. */
static int convert_parquet(const char *path, FILE *to, struct vfm_err *err)
{
	char *program = vfm_installed_program("exec", "table_parquet.py"), why[80];
	char *argv[] = {program ? program : "table_parquet.py", "--", (char *)(uintptr_t)path, NULL};
	posix_spawn_file_actions_t files;
	int rc, status = 0;
	pid_t pid;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, fileno(to), 1);
	rc = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	free(program);
	if (rc != 0) {
		errno = rc;
		return vfm_fail_errno(err, VFM_EENV, "cannot start table_parquet.py, which reads '%s'", path);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status == 0)
		return 0;
	vfm_process_describe(status, why, sizeof(why));
	return vfm_fail(err, VFM_EUSAGE, "cannot read '%s': table_parquet.py, which needs pyarrow, %s", path, why);
}

static int open_parquet(struct vfm_caption_table *t, FILE *store, bool maybe, struct vfm_err *err)
{
	char *copy;
	FILE *f;
	int rc;

	TRY(vfm_unlinked_temp(&f, err));
	copy = vfm_strfmt("/proc/self/fd/%d", fileno(f));
	rc = convert_parquet(t->path, f, err);
	if (rc == 0)
		rc = open_rows(t, copy, store, maybe, err);
	free(copy);
	fclose(f);
	return rc;
}

/* ---- an object ---- */

/* Returns whether a text has rows: it is no object, its first line is one, or it is a row itself. */
static bool has_rows(const char *text, size_t len, const json_t *doc)
{
	size_t at = vfm_has_byte_order_mark(text, len) ? 3 : 0, n;
	struct vfm_err err;
	json_t *first;

	at += strspn(text + at, " \t\r\n");
	n = strcspn(text + at, "\n");
	if (text[at] != '{')
		return true;
	if (doc)
		return vfm_caption_at(doc, vfm_caption_file_keys);
	first = vfm_json_parse_foreign(text + at, n, "line", &err);
	json_decref(first);
	return first;
}

/* Sets *doc to the object of captions in a file; NULL: the file has rows. */
static int load_caption_object(const char *path, json_t **doc, struct vfm_err *err)
{
	char *text;
	size_t len;
	int rc;

	*doc = NULL;
	TRY(vfm_read_regular(path, MAX_OBJECT_BYTES, &text, &len, err));
	*doc = vfm_json_parse_foreign(text, len, path, err);
	rc = *doc ? 0 : VFM_EINPUT;
	if (has_rows(text, len, *doc)) {
		json_decref(*doc);
		*doc = NULL;
		rc = 0;
	}
	free(text);
	return rc;
}

/* Returns 1, or 0 if the first key is not the name of a media file. */
static int read_caption_object(
	struct vfm_caption_table *t, const json_t *doc, FILE *store, bool maybe, struct vfm_err *err)
{
	int64_t place = 0;
	const char *name;
	json_t *value, *caption;

	json_object_foreach((json_t *)(uintptr_t)doc, name, value)
	{
		char *what = vfm_strfmt("'%s': '%.200s'", t->path, name);
		int rc = 0;

		if (maybe && place == 0 && !vfm_media_name(name)) {
			vfm_fail(err, VFM_EINPUT, "its first key is not the name of a video or image");
			free(what);
			return 0;
		}
		rc = vfm_caption_of_json(&caption, value, what, err);
		free(what);
		TRY(rc);
		TRY(add_caption_row(t, name, caption, ++place, store, err));
	}
	return 1;
}

int vfm_caption_table_open(struct vfm_caption_table *t, const char *path, FILE *store, bool maybe, struct vfm_err *err)
{
	json_t *doc = NULL;
	int rc = 0;

	t->path = vfm_strdup(path);
	if (vfm_name_ends(path, ".json"))
		rc = load_caption_object(path, &doc, err);
	if (rc < 0)
		; /* below */
	else if (doc)
		rc = read_caption_object(t, doc, store, maybe, err);
	else if (vfm_name_ends(path, ".parquet"))
		rc = open_parquet(t, store, maybe, err);
	else
		rc = open_rows(t, path, store, maybe, err);
	json_decref(doc);
	if (rc == VFM_EINPUT && err) /* a record is not at fault */
		err->code = VFM_EUSAGE;
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

/* ---- lists ---- */

struct list_of_lines {
	const char *path;
	char *text, *at, *end;
};

static int read_list_file(struct list_of_lines *l, const char *path, struct vfm_err *err)
{
	size_t len;
	int rc = vfm_read_regular(path, MAX_LIST_BYTES, &l->text, &len, err);

	if (rc < 0)
		return rc;
	l->path = path;
	l->at = l->text + (vfm_has_byte_order_mark(l->text, len) ? 3 : 0);
	l->end = l->text + len;
	while (l->end > l->at && strchr(" \t\r\n", l->end[-1]) && l->end[-1])
		l->end--;
	return 0;
}

/* Returns the next line, or NULL at the end. */
static char *next_list_line(struct list_of_lines *l, size_t *len)
{
	char *line = l->at, *stop;

	if (line >= l->end)
		return NULL;
	stop = memchr(line, '\n', (size_t)(l->end - line));
	stop = stop ? stop : l->end;
	*len = (size_t)(stop - line);
	l->at = stop + 1;
	return line;
}

/* Adds the captions of the lines of two files. */
static int add_list_rows(struct vfm_caption_table *t, struct list_of_lines *names, struct list_of_lines *captions,
	FILE *store, struct vfm_err *err)
{
	size_t name_len, len;

	for (int64_t place = 1;; place++) {
		char *name = next_list_line(names, &name_len), *text = next_list_line(captions, &len), *what;
		json_t *caption, *file;
		int rc;

		if (!name && !text)
			return 0;
		if (!name || !text)
			return vfm_fail(err, VFM_EUSAGE, "'%s' ends at line %lld, but '%s' has more lines",
				name ? captions->path : names->path, (long long)place - 1,
				name ? names->path : captions->path);
		what = vfm_strfmt("'%s', line %lld", names->path, (long long)place);
		rc = vfm_caption_of_text(&file, name, name_len, false, what, err);
		if (rc == 0 && !json_string_length(file))
			rc = vfm_fail(err, VFM_EUSAGE, "%s has no name of a file", what);
		free(what);
		what = vfm_strfmt("'%s', line %lld", captions->path, (long long)place);
		if (rc == 0)
			rc = vfm_caption_of_text(&caption, text, len, false, what, err);
		if (rc == 0)
			rc = add_caption_row(t, json_string_value(file), caption, place, store, err);
		free(what);
		json_decref(file);
		TRY(rc);
	}
}

int vfm_caption_lists_open(
	struct vfm_caption_table *t, const char *names, const char *captions, FILE *store, struct vfm_err *err)
{
	struct list_of_lines n = {0}, c = {0};
	int rc = read_list_file(&n, names, err);

	t->path = vfm_strdup(captions);
	if (rc == 0)
		rc = read_list_file(&c, captions, err);
	if (rc == 0)
		rc = add_list_rows(t, &n, &c, store, err);
	free(n.text);
	free(c.text);
	if (rc == VFM_EINPUT && err)
		err->code = VFM_EUSAGE;
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc < 0 ? rc : 1;
}

void vfm_caption_table_close(struct vfm_caption_table *t)
{
	vfm_names_release(&t->names);
	free(t->rows);
	free(t->path);
	*t = (struct vfm_caption_table){0};
}
