/* rows.c - detects the format of a table and returns its rows as JSON objects. */
#include "curate/table/rows.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/record/provenance.h"
#include "io/input.h"

enum { MAX_OBJECT = 16 << 20 };

/* ---- opening ---- */

/* Detects the format of the file, and moves to the beginning of its rows. */
static int find_format(struct vfm_rows *r, struct vfm_err *err)
{
	unsigned char head[4];
	size_t n = fread(head, 1, sizeof(head), r->f);
	int c;

	if (n == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' is empty", r->name);
	if (n == 4 && (!memcmp(head, "PAR1", 4) || !memcmp(head, "PARE", 4)))
		return vfm_fail(err, VFM_EINPUT,
			"'%s' is Parquet: read <(share/exec/table_parquet.py %s), which needs pyarrow", r->name,
			*r->name == '<' ? "FILE" : r->name);
	if ((n > 2 && head[0] == 0x1f && head[1] == 0x8b) || (n == 4 && !memcmp(head, "\x28\xb5\x2f\xfd", 4)))
		return vfm_fail(err, VFM_EINPUT, "'%s' is compressed: unpack it, for example by <(zcat FILE)", r->name);
	rewind(r->f);
	if (vfm_has_byte_order_mark(head, n))
		fseek(r->f, 3, SEEK_SET);
	r->line = 1;
	while ((c = getc(r->f)) == ' ' || c == '\t' || c == '\n' || c == '\r')
		r->line += c == '\n';
	r->is_array = c == '[';
	r->n_columns = c == '{' || c == '[' ? -1 : 0;
	if (!r->is_array)
		rewind(r->f);
	return 0;
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
		if (!vfm_json_takes(r->csv.cells[i].s))
			return vfm_fail(err, VFM_EINPUT, "%s:%lld: the name of column %d is not UTF-8", r->name,
				(long long)r->csv.line, i + 1);
		r->columns[i] = vfm_strdup(r->csv.cells[i].s);
	}
	return 0;
}

int vfm_rows_open(struct vfm_rows *r, const char *path, const char *name, char sep, struct vfm_err *err)
{
	int fd = vfm_open_regular(path, NULL, err);

	if (fd < 0)
		return fd;
	*r = (struct vfm_rows){.name = name, .f = fdopen(fd, "r")};
	r->lines = (struct vfm_jsonl){.f = r->f, .name = name, .max_line = MAX_OBJECT, .is_foreign = true};
	if (!r->f) {
		close(fd);
		return vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", name);
	}
	TRY(find_format(r, err));
	if (r->n_columns < 0)
		return sep ? vfm_fail(err, VFM_EINPUT, "--sep: '%s' is no CSV", name) : 0;
	return open_csv(r, sep, err);
}

void vfm_rows_close(struct vfm_rows *r)
{
	for (int i = 0; i < r->n_columns; i++)
		free((void *)(uintptr_t)r->columns[i]);
	free((void *)r->columns);
	free(r->wanted);
	free(r->object);
	vfm_jsonl_close(&r->lines);
	vfm_csv_close(&r->csv);
	if (r->f)
		fclose(r->f);
	*r = (struct vfm_rows){0};
}

int vfm_rows_select(struct vfm_rows *r, const bool *wanted, struct vfm_err *err)
{
	for (int i = 0; i < r->n_columns; i++)
		for (int k = 0; wanted[i] && k < r->n_columns; k++)
			if (k != i && !strcmp(r->columns[i], r->columns[k]))
				return vfm_fail(err, VFM_EINPUT, "'%s': columns %d and %d have the name '%s'", r->name,
					i + 1, k + 1, r->columns[i]);
	r->wanted = vfm_realloc(r->wanted, (size_t)r->n_columns, sizeof(r->wanted[0]));
	memcpy(r->wanted, wanted, (size_t)r->n_columns * sizeof(r->wanted[0]));
	return 0;
}

/* ---- rows of each format ---- */

/* Adds the text of a cell to a row. */
static int set_cell_text(const struct vfm_rows *r, json_t *row, int column, struct vfm_err *err)
{
	const struct vfm_csv_cell *cell = &r->csv.cells[column];
	json_t *text = vfm_json_string(cell->s, cell->len, "column", NULL);
	char *what;

	if (text) {
		json_object_set_new(row, r->columns[column], text);
		return 0;
	}
	what = vfm_strfmt("'%s', line %lld: column '%s'", r->name, (long long)r->place, r->columns[column]);
	vfm_json_string(cell->s, cell->len, what, err);
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
	for (int i = 0; r->wanted && i < r->n_columns; i++)
		if (r->wanted[i] && r->csv.cells[i].len)
			TRY(set_cell_text(r, *row, i, err));
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

/* Reads the text of an object after its first brace: to the one that closes it. */
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
	if (r->n_columns >= 0)
		rc = next_of_csv(r, row, err);
	else if (r->is_array)
		rc = next_of_array(r, row, err);
	else
		rc = next_of_lines(r, row, err);
	if (rc != 1) {
		json_decref(*row);
		*row = NULL;
	}
	return rc;
}
