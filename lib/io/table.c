/* table.c - collects cells by column, and prints a table in each of its formats. */
#include "io/table.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/json.h"

enum cell_kind { EMPTY, STR, I64, F64, JSON };

struct table_cell {
	enum cell_kind kind;
	union {
		const char *s;
		int64_t i;
		double f;
	} u;
};

struct vfm_table {
	struct vfm_arena arena;
	struct vfm_table_column *cols;
	size_t n_cols, cap_cols;
	size_t n_shown;           /* columns of text, Markdown, CSV and SQL, in front of those of JSON alone */
	struct table_cell *cells; /* [n_rows][n_cols] */
	size_t n_rows, cap_cells;
	const char **notes;
	size_t n_notes, cap_notes;
};

struct vfm_table *vfm_table_new(const struct vfm_table_column *columns)
{
	struct vfm_table *t = vfm_calloc(1, sizeof(*t));

	if (columns)
		vfm_table_columns(t, columns);
	return t;
}

void vfm_table_free(struct vfm_table *t)
{
	if (!t)
		return;
	vfm_arena_release(&t->arena);
	free(t->cols);
	free(t->cells);
	free(t->notes);
	free(t);
}

void vfm_table_col(struct vfm_table *t, const char *key, const char *heading, int digits)
{
	if (t->n_rows) {
		vfm_error("table: column '%s' comes after the first row", key);
		abort();
	}
	vfm_grow(&t->cols, &t->cap_cols, t->n_cols + 1, sizeof(*t->cols));
	t->cols[t->n_cols++] = (struct vfm_table_column){
		vfm_arena_strdup(&t->arena, key), vfm_arena_strdup(&t->arena, heading), digits};
	t->n_shown = t->n_cols;
}

void vfm_table_columns(struct vfm_table *t, const struct vfm_table_column *c)
{
	for (; c->key; c++)
		vfm_table_col(t, c->key, c->heading, c->digits);
}

void vfm_table_json_col(struct vfm_table *t, const char *key)
{
	size_t shown = t->n_shown;

	vfm_table_col(t, key, key, 0);
	t->n_shown = shown;
}

void vfm_table_row(struct vfm_table *t)
{
	vfm_grow(&t->cells, &t->cap_cells, (t->n_rows + 1) * t->n_cols, sizeof(*t->cells));
	for (size_t i = 0; i < t->n_cols; i++)
		t->cells[t->n_rows * t->n_cols + i] = (struct table_cell){.kind = EMPTY};
	t->n_rows++;
}

static struct table_cell *cell_of(struct vfm_table *t, const char *key)
{
	for (size_t i = 0; t->n_rows && i < t->n_cols; i++)
		if (!strcmp(t->cols[i].key, key))
			return &t->cells[(t->n_rows - 1) * t->n_cols + i];
	vfm_error("table: no column '%s', or no row begun", key);
	abort();
}

void vfm_table_str(struct vfm_table *t, const char *key, const char *s)
{
	struct table_cell *c = cell_of(t, key);

	*c = (struct table_cell){.kind = s ? STR : EMPTY};
	c->u.s = s ? vfm_arena_strdup(&t->arena, s) : NULL;
}

void vfm_table_i64(struct vfm_table *t, const char *key, int64_t x)
{
	*cell_of(t, key) = (struct table_cell){.kind = I64, .u.i = x};
}

void vfm_table_f64(struct vfm_table *t, const char *key, double x)
{
	*cell_of(t, key) = (struct table_cell){.kind = F64, .u.f = x};
}

void vfm_table_json(struct vfm_table *t, const char *key, const char *text)
{
	*cell_of(t, key) = (struct table_cell){.kind = JSON, .u.s = vfm_arena_strdup(&t->arena, text)};
}

void vfm_table_note(struct vfm_table *t, const char *fmt, ...)
{
	char *s = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&s, fmt, ap) < 0)
		vfm_out_of_memory();
	va_end(ap);
	vfm_grow(&t->notes, &t->cap_notes, t->n_notes + 1, sizeof(*t->notes));
	t->notes[t->n_notes++] = vfm_arena_strdup(&t->arena, s);
	free(s);
}

const char *const *vfm_table_notes(const struct vfm_table *t, size_t *n)
{
	*n = t->n_notes;
	return t->notes;
}

/* ---- text and Markdown ---- */

static char *cell_text(const struct table_cell *c, int digits)
{
	switch (c->kind) {
	case STR:
		return vfm_strdup(c->u.s);
	case I64:
		return vfm_strfmt("%" PRId64, c->u.i);
	case F64:
		return isfinite(c->u.f) ? vfm_strfmt(digits < 0 ? "%.*g" : "%.*f", abs(digits), c->u.f)
					: vfm_strdup("-");
	default:
		return vfm_strdup("");
	}
}

int vfm_table_rows(const struct vfm_table *t)
{
	return (int)t->n_rows;
}

int vfm_table_cols(const struct vfm_table *t)
{
	return (int)t->n_shown;
}

char *vfm_table_cell(const struct vfm_table *t, int row, int col, bool *number)
{
	const struct table_cell *c = row < 0 ? NULL : &t->cells[(size_t)row * t->n_cols + (size_t)col];

	*number = c && (c->kind == I64 || c->kind == F64);
	return c ? cell_text(c, t->cols[col].digits) : vfm_strdup(t->cols[col].heading);
}

/* Returns the bytes of a control character at s: 1 of ASCII, 2 of U+0080 to U+009F and of U+061C, 3 of the other ones
 * that change the direction of text (Unicode, UAX #9); 0: it is none. */
static int control_bytes(const char *s)
{
	static const char *const bidi[] = {"\xd8\x9c",                                          /* U+061C */
		"\xe2\x80\x8e", "\xe2\x80\x8f",                                                 /* U+200E, U+200F */
		"\xe2\x80\xaa", "\xe2\x80\xab", "\xe2\x80\xac", "\xe2\x80\xad", "\xe2\x80\xae", /* U+202A .. */
		"\xe2\x81\xa6", "\xe2\x81\xa7", "\xe2\x81\xa8", "\xe2\x81\xa9"};                /* U+2066 .. */

	if ((unsigned char)*s < ' ' || *s == 0x7f)
		return 1;
	if (s[0] == '\xc2' && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xa0)
		return 2;
	for (size_t i = 0; i < sizeof(bidi) / sizeof(bidi[0]); i++)
		if (!strncmp(s, bidi[i], strlen(bidi[i])))
			return (int)strlen(bidi[i]);
	return 0;
}

/* Replaces white space by a blank, other control characters by '?', and in Markdown '|' by '/', in place. */
static void mask_cell(char *s, bool md)
{
	char *to = s;

	while (*s) {
		int n = control_bytes(s);

		*to++ = strchr("\n\r\t", *s) ? ' ' : n ? '?' : md && *s == '|' ? '/' : *s;
		s += n ? n : 1;
	}
	*to = 0;
}

/* Returns the number of code points: of bytes that do not continue one. */
static int width_of(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += (*s & 0xc0) != 0x80;
	return n;
}

static void pad_text(struct vfm_buf *b, int n)
{
	for (; n > 0; n--)
		vfm_buf_adds(b, " ");
}

static bool is_number(enum cell_kind k)
{
	return k == I64 || k == F64;
}

struct layout {
	char **text; /* [(n_rows + 1)][n_cols], the heading first */
	int *width;
	bool *right;
};

static void lay_out_table(const struct vfm_table *t, bool md, struct layout *l)
{
	l->text = vfm_calloc((t->n_rows + 1) * t->n_cols + 1, sizeof(char *));
	l->width = vfm_calloc(t->n_cols + 1, sizeof(int));
	l->right = vfm_calloc(t->n_cols + 1, sizeof(bool));
	for (size_t r = 0; r <= t->n_rows; r++)
		for (size_t i = 0; i < t->n_cols; i++) {
			const struct table_cell *c = r ? &t->cells[(r - 1) * t->n_cols + i] : NULL;
			char *s = c ? cell_text(c, t->cols[i].digits) : vfm_strdup(t->cols[i].heading);

			mask_cell(s, md);
			l->text[r * t->n_cols + i] = s;
			if (width_of(s) > l->width[i])
				l->width[i] = width_of(s);
			if (c && is_number(c->kind))
				l->right[i] = true;
		}
}

static void layout_release(const struct vfm_table *t, struct layout *l)
{
	for (size_t i = 0; i < (t->n_rows + 1) * t->n_cols; i++)
		free(l->text[i]);
	free(l->text);
	free(l->width);
	free(l->right);
}

static void text_row(const struct vfm_table *t, const struct layout *l, size_t r, bool md, struct vfm_buf *b)
{
	for (size_t i = 0; i < t->n_shown; i++) {
		const char *s = l->text[r * t->n_cols + i];
		int fill = l->width[i] - width_of(s);

		vfm_buf_adds(b, md ? "| " : i ? "  " : "");
		pad_text(b, l->right[i] ? fill : 0);
		vfm_buf_adds(b, s);
		if (md || i + 1 < t->n_shown)
			pad_text(b, l->right[i] ? 0 : fill);
		vfm_buf_adds(b, md ? " " : "");
	}
	while (!md && b->len && b->data[b->len - 1] == ' ')
		b->data[--b->len] = 0;
	vfm_buf_adds(b, md ? "|\n" : "\n");
}

static void print_text(const struct vfm_table *t, bool md, struct vfm_buf *b)
{
	struct layout l;

	lay_out_table(t, md, &l);
	for (size_t r = 0; r <= t->n_rows; r++) {
		text_row(t, &l, r, md, b);
		for (size_t i = 0; md && r == 0 && i < t->n_shown; i++)
			vfm_buf_adds(b, l.right[i] ? "|--:" : "|:--");
		if (md && r == 0)
			vfm_buf_adds(b, "|\n");
	}
	for (size_t i = 0; i < t->n_notes; i++) {
		char *note = vfm_strdup(t->notes[i]);

		mask_cell(note, false);
		vfm_buf_addf(b, "%s%s\n", i == 0 || md ? "\n" : "", note);
		free(note);
	}
	layout_release(t, &l);
}

/* ---- CSV (RFC 4180, with \n) and JSON ---- */

/* Appends s between `quote`s, those within doubled. */
static void put_quoted(struct vfm_buf *b, const char *s, char quote)
{
	vfm_buf_add(b, &quote, 1);
	for (; *s; s++) {
		vfm_buf_add(b, s, 1);
		if (*s == quote)
			vfm_buf_add(b, s, 1);
	}
	vfm_buf_add(b, &quote, 1);
}

static void csv_str(struct vfm_buf *b, const char *s)
{
	if (strpbrk(s, ",\"\n\r"))
		put_quoted(b, s, '"');
	else
		vfm_buf_adds(b, s);
}

static json_t *cell_json(const struct table_cell *c)
{
	switch (c->kind) {
	case STR: {
		json_t *s = json_string(c->u.s);

		return s ? s : json_null(); /* not UTF-8 */
	}
	case I64:
		return json_integer(c->u.i);
	case F64:
		return vfm_json_real(c->u.f);
	case JSON:
		return json_loads(c->u.s, JSON_DECODE_ANY, NULL);
	default:
		return json_null();
	}
}

static void print_csv(const struct vfm_table *t, struct vfm_buf *b)
{
	for (size_t i = 0; i < t->n_shown; i++) {
		vfm_buf_adds(b, i ? "," : "");
		csv_str(b, t->cols[i].key);
	}
	vfm_buf_adds(b, "\n");
	for (size_t r = 0; r < t->n_rows; r++) {
		for (size_t i = 0; i < t->n_shown; i++) {
			const struct table_cell *c = &t->cells[r * t->n_cols + i];

			vfm_buf_adds(b, i ? "," : "");
			if (c->kind == STR) {
				csv_str(b, c->u.s);
			} else if (c->kind != EMPTY && !(c->kind == F64 && !isfinite(c->u.f))) {
				json_t *v = cell_json(c);

				vfm_json_text(b, v, 0);
				json_decref(v);
			}
		}
		vfm_buf_adds(b, "\n");
	}
}

static json_t *row_json(const struct vfm_table *t, size_t r, bool version)
{
	json_t *o = json_object();

	if (version)
		json_object_set_new(o, "v", json_integer(1));
	for (size_t i = 0; i < t->n_cols; i++)
		json_object_set_new(o, t->cols[i].key, cell_json(&t->cells[r * t->n_cols + i]));
	return o;
}

struct json_t *vfm_table_last_row(const struct vfm_table *t)
{
	return row_json(t, t->n_rows - 1, false);
}

static void print_json(const struct vfm_table *t, bool lines, struct vfm_buf *b)
{
	json_t *rows = json_array(), *notes = json_array(), *doc;

	for (size_t r = 0; r < t->n_rows; r++) {
		json_t *row = row_json(t, r, lines);

		if (lines) {
			vfm_json_text(b, row, 0);
			vfm_buf_adds(b, "\n");
		} else {
			json_array_append(rows, row);
		}
		json_decref(row);
	}
	for (size_t i = 0; i < t->n_notes; i++)
		json_array_append_new(notes, json_string(t->notes[i]));
	doc = json_object();
	json_object_set_new(doc, "v", json_integer(1));
	json_object_set_new(doc, "rows", rows);
	json_object_set_new(doc, "notes", notes);
	if (!lines) {
		vfm_json_text(b, doc, 2);
		vfm_buf_adds(b, "\n");
	}
	json_decref(doc);
}

/* ---- SQL ---- */

static void sql_table_name(struct vfm_buf *b)
{
	char *name = vfm_strdup(vfm_log_program());

	for (char *p = name; *p; p++)
		*p = isalnum((unsigned char)*p) ? *p : '_';
	put_quoted(b, name, '"');
	free(name);
}

/* Returns the type of a column.  SQLite takes any name with INT for an integer and with DOUB for a real number;
 * INTEGER and REAL of PostgreSQL have 32 bits. */
static const char *sql_type(const struct vfm_table *t, size_t col)
{
	bool has[F64 + 1] = {false};

	for (size_t r = 0; r < t->n_rows; r++)
		has[t->cells[r * t->n_cols + col].kind] = true;
	if (has[STR] || (t->cols[col].digits == VFM_TABLE_STRINGS && !has[F64] && !has[I64]))
		return "TEXT";
	return has[I64] && !has[F64] ? "BIGINT" : "DOUBLE PRECISION";
}

static void sql_value(struct vfm_buf *b, const struct table_cell *c)
{
	json_t *v = cell_json(c);

	if (json_is_null(v))
		vfm_buf_adds(b, "NULL");
	else if (c->kind == STR)
		put_quoted(b, c->u.s, '\'');
	else
		vfm_json_text(b, v, 0);
	json_decref(v);
}

static void print_sql(const struct vfm_table *t, struct vfm_buf *b)
{
	vfm_buf_adds(b, "CREATE TABLE IF NOT EXISTS ");
	sql_table_name(b);
	for (size_t i = 0; i < t->n_shown; i++) {
		vfm_buf_adds(b, i ? ",\n  " : " (\n  ");
		put_quoted(b, t->cols[i].key, '"');
		vfm_buf_addf(b, " %s", sql_type(t, i));
	}
	vfm_buf_adds(b, "\n);\n");
	for (size_t r = 0; r < t->n_rows; r++) {
		vfm_buf_adds(b, "INSERT INTO ");
		sql_table_name(b);
		for (size_t i = 0; i < t->n_shown; i++) {
			vfm_buf_adds(b, i ? ", " : " (");
			put_quoted(b, t->cols[i].key, '"');
		}
		for (size_t i = 0; i < t->n_shown; i++) {
			vfm_buf_adds(b, i ? ", " : ") VALUES (");
			sql_value(b, &t->cells[r * t->n_cols + i]);
		}
		vfm_buf_adds(b, ");\n");
	}
	for (size_t i = 0; i < t->n_notes; i++) {
		vfm_buf_adds(b, "-- ");
		for (const char *s = t->notes[i]; *s; s++) /* a control character might end the comment */
			vfm_buf_add(b, (unsigned char)*s < ' ' ? " " : s, 1);
		vfm_buf_adds(b, "\n");
	}
}

int vfm_table_print(const struct vfm_table *t, enum vfm_table_format format, FILE *f, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	int rc = 0;

	if (format == VFM_TABLE_CSV)
		print_csv(t, &b);
	else if (format == VFM_TABLE_JSON || format == VFM_TABLE_JSONL)
		print_json(t, format == VFM_TABLE_JSONL, &b);
	else if (format == VFM_TABLE_SQL)
		print_sql(t, &b);
	else
		print_text(t, format == VFM_TABLE_MD, &b);
	if (b.len && (fwrite(b.data, 1, b.len, f) != b.len || fflush(f)))
		rc = vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the table");
	vfm_buf_release(&b);
	return rc;
}
