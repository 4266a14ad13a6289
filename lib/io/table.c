/* table.c - collects cells by column, and prints a table in each of its formats. */
#include "io/table.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
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

static void append_column(struct vfm_table *t, const struct vfm_table_column *c)
{
	if (t->n_rows) {
		vfm_error("table: column '%s' comes after the first row", c->key);
		abort();
	}
	vfm_grow(&t->cols, &t->cap_cols, t->n_cols + 1, sizeof(*t->cols));
	t->cols[t->n_cols++] = (struct vfm_table_column){
		vfm_arena_strdup(&t->arena, c->key), vfm_arena_strdup(&t->arena, c->heading), c->digits, c->show};
	if (c->show != VFM_COLUMN_JSON)
		t->n_shown = t->n_cols;
}

void vfm_table_col(struct vfm_table *t, const char *key, const char *heading, int digits)
{
	append_column(t, &(struct vfm_table_column){key, heading, digits, VFM_COLUMN_MAIN});
}

void vfm_table_columns(struct vfm_table *t, const struct vfm_table_column *c)
{
	for (; c->key; c++)
		append_column(t, c);
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
	char *s;
	va_list ap;

	va_start(ap, fmt);
	s = vfm_vstrfmt(fmt, ap);
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

/* ---- the columns that are printed ---- */

struct choice {
	size_t *col; /* [n] of the table */
	size_t n;
};

static bool is_for_people(enum vfm_table_format f)
{
	return f == VFM_TABLE_TEXT || f == VFM_TABLE_MD;
}

static bool has_cells(const struct vfm_table *t, size_t col)
{
	for (size_t r = 0; r < t->n_rows; r++)
		if (t->cells[r * t->n_cols + col].kind != EMPTY)
			return true;
	return t->n_rows == 0;
}

static int fail_column(const struct vfm_table *t, size_t n, const char *name, struct vfm_err *err)
{
	struct vfm_buf b = {0};

	for (size_t i = 0; i < n; i++)
		vfm_buf_addf(&b, "%s%s", i ? ", " : "", t->cols[i].key);
	vfm_fail(err, VFM_EUSAGE, "--columns: there is no '%s'; the columns are %s", name, b.data);
	vfm_buf_release(&b);
	return VFM_EUSAGE;
}

/* n: the columns of this format. */
static int choose_named(
	const struct vfm_table *t, size_t n, const struct vfm_list *names, struct choice *c, struct vfm_err *err)
{
	for (size_t k = 0; k < names->n; k++) {
		size_t i = 0;

		while (i < n && strcmp(names->v[k], t->cols[i].key) != 0)
			i++;
		if (i == n)
			return fail_column(t, n, names->v[k], err);
		for (size_t j = 0; j < c->n; j++)
			if (c->col[j] == i)
				return vfm_fail(err, VFM_EUSAGE, "--columns: '%s' is given twice", names->v[k]);
		c->col[c->n++] = i;
	}
	return 0;
}

/* The caller frees c->col. */
static int choose_columns(
	const struct vfm_table *t, const struct vfm_table_opts *o, struct choice *c, struct vfm_err *err)
{
	bool json = o->format == VFM_TABLE_JSON || o->format == VFM_TABLE_JSONL;
	size_t n = json ? t->n_cols : t->n_shown;
	struct vfm_list names = {0};
	int rc = 0;

	*c = (struct choice){.col = vfm_calloc(t->n_cols + 1, sizeof(*c->col))};
	if (o->columns && strcmp(o->columns, "all") != 0) {
		rc = vfm_list_parse(&names, o->columns, err);
		rc = rc < 0 ? vfm_err_context(err, "--columns") : choose_named(t, n, &names, c, err);
		vfm_list_release(&names);
		return rc;
	}
	for (size_t i = 0; i < n; i++)
		if (o->columns || !is_for_people(o->format) ||
			(t->cols[i].show != VFM_COLUMN_DETAIL && has_cells(t, i)))
			c->col[c->n++] = i;
	return 0;
}

int vfm_table_check(const struct vfm_table_column *columns, const struct vfm_table_opts *o, struct vfm_err *err)
{
	struct vfm_table *t = vfm_table_new(columns);
	struct choice c;
	int rc = choose_columns(t, o, &c, err);

	free(c.col);
	vfm_table_free(t);
	return rc;
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

static bool is_number(enum cell_kind k)
{
	return k == I64 || k == F64;
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

	*number = c && is_number(c->kind);
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

static int width_of(const char *s)
{
	return vfm_utf8_width(s, strlen(s));
}

static void pad_text(struct vfm_buf *b, int n)
{
	for (; n > 0; n--)
		vfm_buf_adds(b, " ");
}

enum { PAGE = 100, NARROWEST = 12 }; /* code points: of a line, and of a column of texts that are broken, at least */

/* Returns the bytes of s that a line of `width` code points takes: the words that fit, at least one. */
static size_t fit_line(const char *s, int width)
{
	size_t fits = 0;

	for (size_t at = 0; s[at];) {
		at += strspn(s + at, " ");
		at += strcspn(s + at, " ");
		if (fits && vfm_utf8_width(s, at) > width)
			return fits;
		fits = at;
	}
	return fits;
}

static int longest_word(const char *s)
{
	int most = 0;

	while (*s) {
		size_t n = strcspn(s, " ");

		most = vfm_utf8_width(s, n) > most ? vfm_utf8_width(s, n) : most;
		s += n + strspn(s + n, " ");
	}
	return most;
}

static const char *skip_blanks(const char *s)
{
	return s + strspn(s, " ");
}

/* Appends s; in text in lines, of which all but the first are indented. */
static void add_paragraph(struct vfm_buf *b, const char *s, bool md)
{
	char *copy = vfm_strdup(s);
	const char *rest = copy, *indent = "";

	mask_cell(copy, false);
	do {
		size_t n = md ? strlen(rest) : fit_line(rest, PAGE - (int)strlen(indent));

		vfm_buf_addf(b, "%s%.*s\n", indent, (int)n, rest);
		rest = skip_blanks(rest + n);
		indent = "  ";
	} while (*rest);
	free(copy);
}

struct layout {
	struct choice of;
	struct choice group; /* columns that are in lines above the rows */
	char **text;         /* [(n_rows + 1)][of.n], the heading first */
	const char **rest;   /* [of.n] of a row: what its next line begins with */
	int *width, *word;   /* [of.n] of a column, and of its longest word */
	bool *right;
	bool md;
};

static bool is_new_group(const struct vfm_table *t, const struct choice *group, size_t r)
{
	for (size_t k = 0; r && k < group->n; k++) {
		int digits = t->cols[group->col[k]].digits;
		const struct table_cell *c = &t->cells[r * t->n_cols + group->col[k]];
		char *is = cell_text(c, digits), *was = cell_text(c - t->n_cols, digits);
		bool equal = !strcmp(is, was);

		free(is);
		free(was);
		if (!equal)
			return true;
	}
	return r == 0;
}

/* Moves the columns of groups from l->of to l->group if the table is to have groups. */
static void form_groups(const struct vfm_table *t, struct layout *l)
{
	size_t groups = 0, kept = 0;

	l->group = (struct choice){.col = vfm_calloc(l->of.n + 1, sizeof(*l->group.col))};
	for (size_t i = 0; i < l->of.n; i++)
		if (t->cols[l->of.col[i]].show == VFM_COLUMN_GROUP)
			l->group.col[l->group.n++] = l->of.col[i];
	for (size_t r = 0; r < t->n_rows; r++)
		groups += is_new_group(t, &l->group, r);
	if (2 * groups > t->n_rows || !t->n_rows)
		l->group.n = 0;
	for (size_t i = 0; i < l->of.n; i++)
		if (!l->group.n || t->cols[l->of.col[i]].show != VFM_COLUMN_GROUP)
			l->of.col[kept++] = l->of.col[i];
	l->of.n = kept;
}

/* Makes the widest columns of texts narrower until the table fits the page. */
static void narrow_columns(struct layout *l)
{
	int all = -2;

	for (size_t i = 0; i < l->of.n; i++)
		all += l->width[i] + 2;
	for (; all > PAGE; all--) {
		int widest = -1;

		for (size_t i = 0; i < l->of.n; i++)
			if (!l->right[i] && l->width[i] > NARROWEST && l->width[i] > l->word[i] &&
				(widest < 0 || l->width[i] > l->width[widest]))
				widest = (int)i;
		if (widest < 0)
			return;
		l->width[widest]--;
	}
}

/* Takes the columns of *of. */
static void lay_out_table(const struct vfm_table *t, const struct vfm_table_opts *o, struct choice of, struct layout *l)
{
	*l = (struct layout){.of = of, .md = o->format == VFM_TABLE_MD};
	if (!o->columns)
		form_groups(t, l);
	l->text = vfm_calloc((t->n_rows + 1) * l->of.n + 1, sizeof(char *));
	l->rest = vfm_calloc(l->of.n + 1, sizeof(*l->rest));
	l->width = vfm_calloc(l->of.n + 1, sizeof(int));
	l->word = vfm_calloc(l->of.n + 1, sizeof(int));
	l->right = vfm_calloc(l->of.n + 1, sizeof(bool));
	for (size_t r = 0; r <= t->n_rows; r++)
		for (size_t i = 0; i < l->of.n; i++) {
			size_t col = l->of.col[i];
			const struct table_cell *c = r ? &t->cells[(r - 1) * t->n_cols + col] : NULL;
			char *s = c ? cell_text(c, t->cols[col].digits) : vfm_strdup(t->cols[col].heading);

			mask_cell(s, l->md);
			l->text[r * l->of.n + i] = s;
			if (width_of(s) > l->width[i])
				l->width[i] = width_of(s);
			if (longest_word(s) > l->word[i])
				l->word[i] = longest_word(s);
			if (c && is_number(c->kind))
				l->right[i] = true;
		}
	if (!l->md && !o->columns)
		narrow_columns(l);
}

static void layout_release(const struct vfm_table *t, struct layout *l)
{
	for (size_t i = 0; i < (t->n_rows + 1) * l->of.n; i++)
		free(l->text[i]);
	free(l->text);
	free(l->rest);
	free(l->width);
	free(l->word);
	free(l->right);
	free(l->group.col);
}

/* Appends the next line of a row.  Returns whether there are more. */
static bool add_row_line(struct layout *l, struct vfm_buf *b)
{
	bool more = false;

	for (size_t i = 0; i < l->of.n; i++) {
		size_t n = fit_line(l->rest[i], l->width[i]);
		char *s = vfm_strfmt("%.*s", (int)n, l->rest[i]);
		int fill = l->width[i] - width_of(s);

		vfm_buf_adds(b, l->md ? "| " : i ? "  " : "");
		pad_text(b, l->right[i] ? fill : 0);
		vfm_buf_adds(b, s);
		if (l->md || i + 1 < l->of.n)
			pad_text(b, l->right[i] ? 0 : fill);
		vfm_buf_adds(b, l->md ? " " : "");
		l->rest[i] = skip_blanks(l->rest[i] + n);
		more |= *l->rest[i] != 0;
		free(s);
	}
	while (!l->md && b->len && b->data[b->len - 1] == ' ')
		b->data[--b->len] = 0;
	vfm_buf_adds(b, l->md ? "|\n" : "\n");
	return more;
}

/* r: 0 is the heading. */
static void add_text_row(struct layout *l, size_t r, struct vfm_buf *b)
{
	for (size_t i = 0; i < l->of.n; i++)
		l->rest[i] = l->text[r * l->of.n + i];
	while (add_row_line(l, b))
		;
	for (size_t i = 0; l->md && r == 0 && i < l->of.n; i++)
		vfm_buf_adds(b, l->right[i] ? "|--:" : "|:--");
	if (l->md && r == 0)
		vfm_buf_adds(b, "|\n");
}

/* "model dit-7b, context 4096", of the rows from r on. */
static void add_group_line(const struct vfm_table *t, const struct layout *l, size_t r, struct vfm_buf *b)
{
	struct vfm_buf line = {0};

	for (size_t k = 0; k < l->group.n; k++) {
		const struct vfm_table_column *col = &t->cols[l->group.col[k]];
		char *s = cell_text(&t->cells[r * t->n_cols + l->group.col[k]], col->digits);

		vfm_buf_addf(&line, "%s%s %s", k ? ", " : "", col->heading, s);
		free(s);
	}
	add_paragraph(b, line.data, l->md);
	vfm_buf_adds(b, l->md ? "\n" : "");
	vfm_buf_release(&line);
}

static void print_text(
	const struct vfm_table *t, const struct vfm_table_opts *o, const struct choice *of, struct vfm_buf *b)
{
	struct layout l;

	lay_out_table(t, o, *of, &l);
	if (!l.group.n)
		add_text_row(&l, 0, b);
	for (size_t r = 0; r < t->n_rows; r++) {
		if (l.group.n && is_new_group(t, &l.group, r)) {
			vfm_buf_adds(b, r ? "\n" : "");
			add_group_line(t, &l, r, b);
			add_text_row(&l, 0, b);
		}
		add_text_row(&l, r + 1, b);
	}
	for (size_t i = 0; i < t->n_notes; i++) {
		vfm_buf_adds(b, i == 0 || l.md ? "\n" : "");
		add_paragraph(b, t->notes[i], l.md);
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

static void print_csv(const struct vfm_table *t, const struct choice *of, struct vfm_buf *b)
{
	for (size_t i = 0; i < of->n; i++) {
		vfm_buf_adds(b, i ? "," : "");
		csv_str(b, t->cols[of->col[i]].key);
	}
	vfm_buf_adds(b, "\n");
	for (size_t r = 0; r < t->n_rows; r++) {
		for (size_t i = 0; i < of->n; i++) {
			const struct table_cell *c = &t->cells[r * t->n_cols + of->col[i]];

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

static json_t *row_json(const struct vfm_table *t, size_t r, const struct choice *of, bool version)
{
	json_t *o = json_object();

	if (version)
		json_object_set_new(o, "v", json_integer(1));
	for (size_t i = 0; i < of->n; i++)
		json_object_set_new(o, t->cols[of->col[i]].key, cell_json(&t->cells[r * t->n_cols + of->col[i]]));
	return o;
}

struct json_t *vfm_table_last_row(const struct vfm_table *t)
{
	struct choice all;
	json_t *row;

	choose_columns(t, &(struct vfm_table_opts){.format = VFM_TABLE_JSON}, &all, NULL);
	row = row_json(t, t->n_rows - 1, &all, false);
	free(all.col);
	return row;
}

static void print_json(const struct vfm_table *t, const struct choice *of, bool lines, struct vfm_buf *b)
{
	json_t *rows = json_array(), *notes = json_array(), *doc;

	for (size_t r = 0; r < t->n_rows; r++) {
		json_t *row = row_json(t, r, of, lines);

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

static void print_sql(const struct vfm_table *t, const struct choice *of, struct vfm_buf *b)
{
	vfm_buf_adds(b, "CREATE TABLE IF NOT EXISTS ");
	sql_table_name(b);
	for (size_t i = 0; i < of->n; i++) {
		vfm_buf_adds(b, i ? ",\n  " : " (\n  ");
		put_quoted(b, t->cols[of->col[i]].key, '"');
		vfm_buf_addf(b, " %s", sql_type(t, of->col[i]));
	}
	vfm_buf_adds(b, "\n);\n");
	for (size_t r = 0; r < t->n_rows; r++) {
		vfm_buf_adds(b, "INSERT INTO ");
		sql_table_name(b);
		for (size_t i = 0; i < of->n; i++) {
			vfm_buf_adds(b, i ? ", " : " (");
			put_quoted(b, t->cols[of->col[i]].key, '"');
		}
		for (size_t i = 0; i < of->n; i++) {
			vfm_buf_adds(b, i ? ", " : ") VALUES (");
			sql_value(b, &t->cells[r * t->n_cols + of->col[i]]);
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

int vfm_table_print(const struct vfm_table *t, const struct vfm_table_opts *o, FILE *f, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	struct choice of;
	int rc;

	TRY_OUT(choose_columns(t, o, &of, err));
	if (is_for_people(o->format))
		print_text(t, o, &of, &b);
	else if (o->format == VFM_TABLE_CSV)
		print_csv(t, &of, &b);
	else if (o->format == VFM_TABLE_SQL)
		print_sql(t, &of, &b);
	else
		print_json(t, &of, o->format == VFM_TABLE_JSONL, &b);
	if (b.len && (fwrite(b.data, 1, b.len, f) != b.len || fflush(f)))
		rc = vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write the table");
out:
	free(of.col);
	vfm_buf_release(&b);
	return rc;
}
