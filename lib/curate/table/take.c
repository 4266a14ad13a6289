/* take.c - parses lists of columns and new names, and sets the values of a record. */
#include "curate/table/take.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/near.h"
#include "base/num.h"
#include "data/record/record.h"
#include "io/json.h"

enum { MAX_PATH_PART = 127 };

/* Keys that the stages own. */
static bool is_stage_key(const char *key, bool takes_id)
{
	static const char *const reserved[] = {
		"v", "by", "part", "siblings", "transitions", "provenance", "error", "drop", "id", NULL};
	size_t n = strcspn(key, ".");

	for (int i = 0; reserved[i]; i++)
		if (strlen(reserved[i]) == n && !strncmp(reserved[i], key, n))
			return strcmp(reserved[i], "id") != 0 || !takes_id;
	return false;
}

static int check_key(const struct vfm_take *t, const char *key, struct vfm_err *err)
{
	if (is_stage_key(key, t->takes_id))
		return vfm_fail(err, VFM_EUSAGE, "the key '%s' belongs to the stages: COLUMN=KEY gives another", key);
	if (!vfm_json_takes(key))
		return vfm_fail(err, VFM_EUSAGE, "'%s' is no key: it is not UTF-8", key);
	for (const char *p = key;; p++) {
		size_t n = strcspn(p, ".");

		if (n == 0 || n > MAX_PATH_PART)
			return vfm_fail(err, VFM_EUSAGE,
				"'%s' is no key: a part between its dots is empty or too long; COLUMN=KEY gives "
				"another",
				key);
		p += n;
		if (!*p)
			return 0;
	}
}

/* ---- the lists ---- */

static bool has_column(const char *const *names, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

static int check_column(
	const struct vfm_take *t, const char *const *names, int n, const char *name, struct vfm_err *err)
{
	const char **list, *near;

	if (n < 0 ? *name != 0 : has_column(names, n, name))
		return 0;
	list = vfm_calloc(n < 0 ? 1 : (size_t)n + 1, sizeof(*list));
	for (int i = 0; i < n; i++)
		list[i] = names[i];
	near = vfm_near(name, list);
	free((void *)list);
	if (near)
		return vfm_fail(err, VFM_EUSAGE, "'%s' has no column '%s' (did you mean '%s'?)", t->table, name, near);
	return vfm_fail(err, VFM_EUSAGE, "'%s' has no column '%s'", t->table, name);
}

static void add_column(struct vfm_take *t, const char *column, const char *key)
{
	t->columns = vfm_realloc(t->columns, (size_t)t->n + 1, sizeof(t->columns[0]));
	t->columns[t->n++] = (struct vfm_take_column){
		vfm_arena_strdup(&t->names, column), vfm_arena_strdup(&t->names, key), false, false};
}

/* Adds "COLUMN" or "COLUMN=KEY", which it changes. */
static int add_taken(struct vfm_take *t, const char *const *names, int n, char *item, struct vfm_err *err)
{
	char *eq = has_column(names, n, item) ? NULL : strrchr(item, '=');

	if (eq)
		*eq = 0;
	TRY(check_column(t, names, n, item, err));
	TRY(check_key(t, eq ? eq + 1 : item, err));
	for (int i = 0; i < t->n; i++)
		if (!strcmp(t->columns[i].key, eq ? eq + 1 : item))
			return vfm_fail(err, VFM_EUSAGE, "two columns become the key '%s'", t->columns[i].key);
	add_column(t, item, eq ? eq + 1 : item);
	return 0;
}

static int add_number_column(struct vfm_take *t, const char *const *names, int n, char *item, struct vfm_err *err)
{
	bool is_taken = t->all;

	TRY(check_column(t, names, n, item, err));
	for (int i = 0; i < t->n; i++)
		if (!strcmp(t->columns[i].column, item))
			is_taken = t->columns[i].is_number = true;
	if (!is_taken)
		return vfm_fail(err, VFM_EUSAGE, "column '%s' is not taken", item);
	vfm_strlist_add(&t->numbers, vfm_arena_strdup(&t->names, item));
	return 0;
}

typedef int (*add_fn)(struct vfm_take *t, const char *const *names, int n, char *item, struct vfm_err *err);

/* Calls `add` for each item of a list. */
static int read_list(struct vfm_take *t, const struct vfm_strlist *list, const char *const *names, int n, add_fn add,
	struct vfm_err *err)
{
	for (int i = 0; i < list->n; i++) {
		char *text = vfm_strdup(list->v[i]), *item = text, *comma;
		int rc = 0;

		if (has_column(names, n, text)) {
			rc = add(t, names, n, text, err);
			item = NULL;
		}
		for (; rc == 0 && item; item = comma) {
			comma = strchr(item, ',');
			if (comma)
				*comma++ = 0;
			rc = add(t, names, n, item, err);
		}
		free(text);
		TRY(rc);
	}
	return 0;
}

/* Without a list: the columns of the table, if they are known. */
static int add_all(struct vfm_take *t, const char *const *names, int n, struct vfm_err *err)
{
	for (int i = 0; i < n; i++) {
		if (!*names[i] || is_stage_key(names[i], t->takes_id) ||
			(t->key_column && !strcmp(names[i], t->key_column)))
			continue;
		TRY(check_key(t, names[i], err));
		add_column(t, names[i], names[i]);
	}
	return 0;
}

static int select_columns(const struct vfm_take *t, struct vfm_rows *rows, struct vfm_err *err)
{
	const char *const *names = rows->columns;
	const int n = rows->n_columns;
	bool *wanted = vfm_calloc((size_t)n + 1, sizeof(*wanted));
	int rc;

	for (int i = 0; i < n; i++) {
		wanted[i] = t->key_column && !strcmp(names[i], t->key_column);
		for (int k = 0; k < t->n; k++)
			wanted[i] |= !strcmp(names[i], t->columns[k].column);
	}
	rc = vfm_rows_select(rows, wanted, err);
	free(wanted);
	return rc < 0 && t->all ? vfm_err_context(err, "without --take, all columns are read") : rc;
}

int vfm_take_init(struct vfm_take *t, struct vfm_rows *rows, const struct vfm_strlist *list,
	const struct vfm_strlist *numbers, const char *key_column, bool takes_id, struct vfm_err *err)
{
	const char *const *names = rows->columns;
	const int n = rows->n_columns;

	t->table = rows->name;
	t->all = list->n == 0;
	t->key_column = key_column;
	t->takes_id = takes_id;
	if (key_column)
		TRY(check_column(t, names, n, key_column, err));
	if (read_list(t, list, names, n, add_taken, err) < 0 || (t->all && add_all(t, names, n, err) < 0))
		return vfm_err_context(err, "--take");
	if (read_list(t, numbers, names, n, add_number_column, err) < 0)
		return vfm_err_context(err, "--numbers");
	return n < 0 ? 0 : select_columns(t, rows, err);
}

void vfm_take_release(struct vfm_take *t)
{
	free(t->columns);
	vfm_strlist_release(&t->numbers);
	vfm_arena_release(&t->names);
	*t = (struct vfm_take){0};
}

void vfm_take_describe(const struct vfm_take *t, struct vfm_buf *b)
{
	json_t *list = t->all ? json_string("all") : json_array(), *numbers = json_array();

	for (int i = 0; i < t->n && !t->all; i++)
		json_array_append_new(list, json_pack("[s,s]", t->columns[i].column, t->columns[i].key));
	for (int i = 0; i < t->numbers.n; i++)
		json_array_append_new(numbers, json_string(t->numbers.v[i]));
	vfm_buf_adds(b, "take ");
	vfm_json_text(b, list, 0);
	if (t->numbers.n) {
		vfm_buf_adds(b, " numbers ");
		vfm_json_text(b, numbers, 0);
	}
	json_decref(list);
	json_decref(numbers);
}

/* ---- values ---- */

const char *vfm_short_text(char text[VFM_SHORT_TEXT], const char *s)
{
	size_t n = strnlen(s, VFM_SHORT_TEXT - 1);

	while (n && s[n] && (s[n] & 0xc0) == 0x80) /* within a character */
		n--;
	memcpy(text, s, n);
	text[n] = 0;
	return text;
}

const json_t *vfm_take_value(const json_t *row, const char *column)
{
	const json_t *v = json_object_get(row, column);

	if (!v)
		v = vfm_rec_at(row, column);
	return json_is_null(v) ? NULL : v;
}

/* Returns whether s is a decimal number; sets *is_integer. */
static bool is_decimal(const char *s, bool *is_integer)
{
	const char *digits;

	s += *s == '-';
	for (digits = s; isdigit((unsigned char)*s); s++)
		;
	if (s == digits)
		return false;
	*is_integer = !*s;
	if (*s == '.')
		for (s++; isdigit((unsigned char)*s); s++)
			;
	if (*s == 'e' || *s == 'E') {
		s++;
		s += *s == '-' || *s == '+';
		for (digits = s; isdigit((unsigned char)*s); s++)
			;
		if (s == digits)
			return false;
	}
	return !*s;
}

/* Sets *number, which the caller owns, or NULL for "nan". */
static int read_text_number(const char *s, const char *column, json_t **number, struct vfm_err *err)
{
	char text[VFM_SHORT_TEXT];
	bool is_integer = false;
	int64_t i;
	double x;

	*number = NULL;
	if (!strcasecmp(s, "nan") || !*s)
		return 0;
	if (!is_decimal(s, &is_integer))
		return vfm_fail(err, VFM_EINPUT, "column '%s': '%s' is no number", column, vfm_short_text(text, s));
	if (is_integer && vfm_parse_i64(s, INT64_MIN, INT64_MAX, &i, NULL) == 0) {
		*number = json_integer(i);
		return 0;
	}
	x = strtod(s, NULL);
	if (!isfinite(x))
		return vfm_fail(err, VFM_EINPUT, "column '%s': '%s' is too large", column, vfm_short_text(text, s));
	*number = json_real(x);
	return 0;
}

static int take_value(
	json_t *values, const char *column, const char *key, bool is_number, const json_t *v, struct vfm_err *err)
{
	json_t *number = NULL;

	if (is_number && json_is_string(v)) {
		TRY(read_text_number(json_string_value(v), column, &number, err));
		if (number)
			json_object_set_new(values, key, number);
	} else if (v && !json_is_null(v)) {
		json_object_set(values, key, (json_t *)(uintptr_t)v);
	}
	return 0;
}

static bool is_listed(const struct vfm_strlist *l, const char *name)
{
	for (int i = 0; i < l->n; i++)
		if (!strcmp(l->v[i], name))
			return true;
	return false;
}

/* All columns of a row of JSON. */
static int take_all(const struct vfm_take *t, const json_t *row, json_t *values, struct vfm_err *err)
{
	const char *name;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)row, name, v)
	{
		if (!*name || is_stage_key(name, t->takes_id) || (t->key_column && !strcmp(name, t->key_column)))
			continue;
		if (check_key(t, name, err) < 0)
			return vfm_fail(err, VFM_EINPUT, "column '%s' cannot be a key: --take gives it another", name);
		TRY(take_value(values, name, name, is_listed(&t->numbers, name), v, err));
	}
	return 0;
}

int vfm_take_row(struct vfm_take *t, const json_t *row, json_t **values, struct vfm_err *err)
{
	int rc = 0;

	*values = json_object();
	if (t->all && !t->n)
		rc = take_all(t, row, *values, err);
	for (int i = 0; i < t->n && rc == 0; i++) {
		struct vfm_take_column *c = &t->columns[i];
		const json_t *v = vfm_take_value(row, c->column);

		c->is_seen |= v != NULL;
		rc = take_value(*values, c->column, c->key, c->is_number, v, err);
	}
	if (rc < 0) {
		json_decref(*values);
		*values = NULL;
	}
	return rc;
}

const char *vfm_take_unseen(const struct vfm_take *t)
{
	for (int i = 0; i < t->n; i++)
		if (!t->columns[i].is_seen)
			return t->columns[i].column;
	return NULL;
}

/* ---- records ---- */

/* Returns the object that holds the last part of a path, and sets *last to this part.  Makes missing objects if `make`.
 * NULL: one is missing; *blocked: or is no object. */
static json_t *find_holder(json_t *rec, const char *path, const char **last, bool make, bool *blocked)
{
	char part[MAX_PATH_PART + 1];
	const char *dot;

	*blocked = false;
	while ((dot = strchr(path, '.'))) {
		json_t *inner;

		snprintf(part, sizeof(part), "%.*s", (int)(dot - path), path);
		inner = json_object_get(rec, part);
		if (!inner && make) {
			inner = json_object();
			json_object_set_new(rec, part, inner);
		}
		*blocked = inner && !json_is_object(inner);
		if (!inner || *blocked)
			return NULL;
		rec = inner;
		path = dot + 1;
	}
	*last = path;
	return rec;
}

/* "a" and "a.b" have no room in one record. */
static int check_nesting(const json_t *values, const char *key, struct vfm_err *err)
{
	for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
		char *outer = vfm_strfmt("%.*s", (int)(dot - key), key);
		bool is_taken = json_object_get(values, outer) != NULL;

		free(outer);
		if (is_taken)
			return vfm_fail(err, VFM_EINPUT,
				"the key '%s' lies within '%.*s', the key of another column: --take COLUMN=KEY gives "
				"another",
				key, (int)(dot - key), key);
	}
	return 0;
}

int vfm_take_set(json_t *rec, const json_t *values, bool overwrite, struct vfm_err *err)
{
	const char *key, *last;
	json_t *v, *holder, *was;
	bool blocked;

	json_object_foreach((json_t *)(uintptr_t)values, key, v)
	{
		TRY(check_nesting(values, key, err));
		holder = find_holder(rec, key, &last, false, &blocked);
		if (blocked)
			return vfm_fail(err, VFM_EINPUT, "the key '%s': a part of it is no object in the record", key);
		was = holder ? json_object_get(holder, last) : NULL;
		if (was && !json_is_null(was) && !overwrite && !json_equal(was, v))
			return vfm_fail(err, VFM_EINPUT,
				"the record has another value under '%s': --overwrite, or --take COLUMN=KEY", key);
	}
	json_object_foreach((json_t *)(uintptr_t)values, key, v)
	{
		holder = find_holder(rec, key, &last, true, &blocked);
		json_object_set(holder, last, v);
	}
	return 0;
}
