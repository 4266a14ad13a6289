#include "curate/table/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "curate/table/csv.h"
#include "curate/table/parquet.h"
#include "data/record/provenance.h"
#include "io/input.h"
#include "io/json.h"

enum { MAX_OBJECT = 16 << 20 };

enum rows_format { FORMAT_JSONL, FORMAT_ARRAY, FORMAT_CSV, FORMAT_PARQUET };

struct vfm_rows {
	enum rows_format format;
	FILE *f;
	const char *name;
	const char **columns; /* [n_columns] of CSV and Parquet */
	int n_columns, n_selected;
	int *selected; /* [n_selected] */
	int64_t place;
	bool ended;
	struct vfm_jsonl lines;
	struct vfm_csv csv;
	struct vfm_parquet *parquet;
	struct vfm_cell *cells;
	/* of a JSON array */
	int64_t line;
	bool begun;
	char *object;
	size_t object_len, object_cap;
};

/* ---- opening ---- */

static int find_format(struct vfm_rows *r, struct vfm_err *err)
{
	unsigned char head[4];
	size_t n = fread(head, 1, sizeof(head), r->f);
	int c;

	if (n == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' is empty", r->name);
	if (n == 4 && !memcmp(head, "PAR1", 4)) {
		r->format = FORMAT_PARQUET;
		return 0;
	}
	if ((n > 2 && head[0] == 0x1f && head[1] == 0x8b) || (n == 4 && !memcmp(head, "\x28\xb5\x2f\xfd", 4)))
		return vfm_fail(err, VFM_EINPUT, "'%s' is compressed: unpack it, for example by <(zcat FILE)", r->name);
	rewind(r->f);
	if (vfm_has_byte_order_mark(head, n))
		fseek(r->f, 3, SEEK_SET);
	r->line = 1;
	while ((c = getc(r->f)) == ' ' || c == '\t' || c == '\n' || c == '\r')
		r->line += c == '\n';
	r->format = c == '{' ? FORMAT_JSONL : c == '[' ? FORMAT_ARRAY : FORMAT_CSV;
	if (r->format != FORMAT_ARRAY)
		rewind(r->f);
	return 0;
}

static int check_column_name(const char *text, int column, struct vfm_err *err)
{
	if (vfm_json_takes(text))
		return 0;
	return vfm_fail(err, VFM_EINPUT, "the name of column %d is not UTF-8", column + 1);
}

static int open_csv(struct vfm_rows *r, char sep, struct vfm_err *err)
{
	int rc;

	TRY(vfm_csv_open(&r->csv, r->f, r->name, sep, err));
	rc = vfm_csv_next(&r->csv, err);
	if (rc == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' has no row with the names of the columns", r->name);
	if (rc < 0)
		return rc;
	r->n_columns = r->csv.n;
	r->columns = vfm_calloc((size_t)r->n_columns, sizeof(r->columns[0]));
	for (int i = 0; i < r->n_columns; i++) {
		if (check_column_name(r->csv.cells[i].s, i, err) < 0)
			return vfm_err_context(err, "%s:%lld", r->name, (long long)r->csv.line);
		r->columns[i] = vfm_strdup(r->csv.cells[i].s);
	}
	return 0;
}

static int open_parquet(struct vfm_rows *r, struct vfm_err *err)
{
	TRY(vfm_parquet_open(&r->parquet, fileno(r->f), r->name, err));
	r->n_columns = vfm_parquet_columns(r->parquet);
	r->columns = vfm_calloc((size_t)r->n_columns + 1, sizeof(r->columns[0]));
	for (int i = 0; i < r->n_columns; i++) {
		const char *text = vfm_parquet_name(r->parquet, i);

		if (check_column_name(text, i, err) < 0)
			return vfm_err_context(err, "'%s'", r->name);
		r->columns[i] = vfm_strdup(text);
	}
	return 0;
}

int vfm_rows_open(struct vfm_rows **out, const char *path, const char *name, char sep, struct vfm_err *err)
{
	struct vfm_rows *r = vfm_calloc(1, sizeof(*r));
	int fd = vfm_open_regular(path, NULL, err), rc = fd < 0 ? fd : 0;

	*out = NULL;
	r->name = name;
	r->f = fd < 0 ? NULL : fdopen(fd, "r");
	if (fd >= 0 && !r->f) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", name);
		close(fd);
	}
	if (rc == 0)
		rc = find_format(r, err);
	r->lines = (struct vfm_jsonl){.f = r->f, .name = name, .max_line = MAX_OBJECT, .is_foreign = true};
	if (rc == 0 && sep && r->format != FORMAT_CSV)
		rc = vfm_fail(err, VFM_EINPUT, "--sep: '%s' is no CSV", name);
	if (rc == 0 && r->format == FORMAT_CSV)
		rc = open_csv(r, sep, err);
	if (rc == 0 && r->format == FORMAT_PARQUET)
		rc = open_parquet(r, err);
	if (rc < 0) {
		vfm_rows_close(r);
		return rc;
	}
	*out = r;
	return 0;
}

void vfm_rows_close(struct vfm_rows *r)
{
	if (!r)
		return;
	for (int i = 0; i < r->n_columns; i++)
		free((void *)(uintptr_t)r->columns[i]);
	free((void *)r->columns);
	free(r->selected);
	free(r->cells);
	free(r->object);
	vfm_jsonl_close(&r->lines);
	vfm_csv_close(&r->csv);
	vfm_parquet_close(r->parquet);
	if (r->f)
		fclose(r->f);
	free(r);
}

int vfm_rows_columns(const struct vfm_rows *r, const char *const **names)
{
	*names = r->columns;
	return r->format == FORMAT_CSV || r->format == FORMAT_PARQUET ? r->n_columns : -1;
}

static int check_column_names(const struct vfm_rows *r, const bool *wanted, struct vfm_err *err)
{
	for (int i = 0; i < r->n_columns; i++)
		for (int k = 0; wanted[i] && k < r->n_columns; k++)
			if (k != i && !strcmp(r->columns[i], r->columns[k]))
				return vfm_fail(err, VFM_EINPUT, "'%s': columns %d and %d have the name '%s'", r->name,
					i + 1, k + 1, r->columns[i]);
	return 0;
}

int vfm_rows_select(struct vfm_rows *r, const bool *wanted, struct vfm_err *err)
{
	r->selected = vfm_realloc(r->selected, (size_t)r->n_columns + 1, sizeof(r->selected[0]));
	r->n_selected = 0;
	for (int i = 0; i < r->n_columns; i++)
		if (wanted[i])
			r->selected[r->n_selected++] = i;
	if (r->format == FORMAT_PARQUET) {
		r->cells = vfm_realloc(r->cells, (size_t)r->n_selected + 1, sizeof(r->cells[0]));
		TRY(vfm_parquet_select(r->parquet, r->selected, r->n_selected, err));
	}
	return check_column_names(r, wanted, err);
}

/* ---- rows of each format ---- */

/* Adds a text to a row. */
static int set_cell_text(
	const struct vfm_rows *r, json_t *row, int column, const char *s, size_t len, struct vfm_err *err)
{
	json_t *text = vfm_json_string(s, len, "column", NULL);
	char *what;

	if (text) {
		json_object_set_new(row, r->columns[column], text);
		return 0;
	}
	what = vfm_strfmt(
		"'%s', %s %lld: column '%s'", r->name, vfm_rows_unit(r), (long long)r->place, r->columns[column]);
	vfm_json_string(s, len, what, err);
	free(what);
	return VFM_EINPUT;
}

static int next_of_csv(struct vfm_rows *r, json_t **row, struct vfm_err *err)
{
	int rc = vfm_csv_next(&r->csv, err);

	r->place = r->csv.line;
	if (rc <= 0)
		return rc;
	if (r->csv.n != r->n_columns)
		return vfm_fail(err, VFM_EINPUT, "%s:%lld: the row has %d cells, but there are %d columns", r->name,
			(long long)r->place, r->csv.n, r->n_columns);
	*row = json_object();
	for (int i = 0; i < r->n_selected; i++) {
		const struct vfm_csv_cell *cell = &r->csv.cells[r->selected[i]];

		if (cell->len)
			TRY(set_cell_text(r, *row, r->selected[i], cell->s, cell->len, err));
	}
	return 1;
}

static int next_of_parquet(struct vfm_rows *r, json_t **row, struct vfm_err *err)
{
	int rc;

	r->place++;
	rc = vfm_parquet_next(r->parquet, r->cells, err);
	if (rc <= 0)
		return rc;
	*row = json_object();
	for (int i = 0; i < r->n_selected; i++) {
		const struct vfm_cell *cell = &r->cells[i];
		const char *name = r->columns[r->selected[i]];

		if (cell->type == VFM_CELL_TEXT)
			TRY(set_cell_text(r, *row, r->selected[i], cell->text.s, cell->text.len, err));
		else if (cell->type == VFM_CELL_BOOL)
			json_object_set_new(*row, name, json_boolean(cell->i));
		else if (cell->type == VFM_CELL_INT)
			json_object_set_new(*row, name, json_integer(cell->i));
		else if (cell->type == VFM_CELL_REAL && isfinite(cell->x))
			json_object_set_new(*row, name, json_real(cell->x));
		else if (cell->type == VFM_CELL_JSON)
			json_object_set(*row, name, cell->json);
	}
	return 1;
}

/* A column of a table may be named "provenance", too. */
static bool is_header_line(const json_t *row)
{
	return vfm_provenance_is_header(row) && json_is_array(json_object_get(row, "provenance")) &&
		json_object_size(row) == (json_object_get(row, "v") ? 2 : 1);
}

static int next_of_lines(struct vfm_rows *r, json_t **row, struct vfm_err *err)
{
	int rc;

	do {
		json_decref(*row);
		rc = vfm_jsonl_next(&r->lines, row, err);
		r->place = r->lines.line;
	} while (rc == 1 && is_header_line(*row));
	return rc;
}

static int fail_array(struct vfm_rows *r, const char *why, struct vfm_err *err)
{
	r->ended = true;
	return vfm_fail(err, VFM_EINPUT, "%s:%lld: %s; the rest is not read", r->name, (long long)r->line, why);
}

static int array_char(struct vfm_rows *r)
{
	int c = getc_unlocked(r->f);

	r->line += c == '\n';
	return c;
}

static int array_token(struct vfm_rows *r)
{
	int c;

	while ((c = array_char(r)) == ' ' || c == '\t' || c == '\n' || c == '\r')
		;
	return c;
}

/* Reads the text of an object behind its first brace: to the one that closes it. */
static int read_object(struct vfm_rows *r, struct vfm_err *err)
{
	bool in_text = false, escaped = false;
	int depth = 1, c = '{';

	r->object_len = 0;
	r->place = r->line;
	for (;;) {
		vfm_grow(&r->object, &r->object_cap, r->object_len + 1, 1);
		r->object[r->object_len++] = (char)c;
		if (!depth)
			return 0;
		c = array_char(r);
		if (c == EOF)
			return fail_array(r, "the file ends within an object", err);
		if (r->object_len == MAX_OBJECT)
			return fail_array(r, "an object exceeds 16 MiB", err);
		if (in_text) {
			in_text = c != '"' || escaped;
			escaped = c == '\\' && !escaped;
		} else {
			in_text = c == '"';
			depth += (c == '{' || c == '[') - (c == '}' || c == ']');
		}
	}
}

static int next_of_array(struct vfm_rows *r, json_t **row, struct vfm_err *err)
{
	int c = array_token(r);

	if (c == ']' && array_token(r) == EOF) {
		r->ended = true;
		return 0;
	}
	if (r->begun && c == ',')
		c = array_token(r);
	else if (r->begun)
		return fail_array(r, "expected a comma or the end of the array", err);
	if (c != '{')
		return fail_array(r, "expected an array of objects", err);
	r->begun = true;
	TRY(read_object(r, err));
	r->lines.line = r->place;
	return vfm_jsonl_parse(&r->lines, r->object, r->object_len, row, err);
}

int vfm_rows_next(struct vfm_rows *r, json_t **row, struct vfm_err *err)
{
	int rc = 0;

	*row = NULL;
	if (r->ended)
		return 0;
	switch (r->format) {
	case FORMAT_JSONL:
		rc = next_of_lines(r, row, err);
		break;
	case FORMAT_ARRAY:
		rc = next_of_array(r, row, err);
		break;
	case FORMAT_CSV:
		rc = next_of_csv(r, row, err);
		break;
	case FORMAT_PARQUET:
		rc = next_of_parquet(r, row, err);
		break;
	}
	if (rc != 1) {
		json_decref(*row);
		*row = NULL;
	}
	return rc;
}

int64_t vfm_rows_place(const struct vfm_rows *r)
{
	return r->place;
}

const char *vfm_rows_unit(const struct vfm_rows *r)
{
	return r->format == FORMAT_PARQUET ? "row" : "line";
}

const char *vfm_rows_name(const struct vfm_rows *r)
{
	return r->name;
}
