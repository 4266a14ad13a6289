/* csv.c - a reader of quoted and unquoted cells that finds the separator itself. */
#include "curate/table/csv.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "io/input.h"

enum { MAX_ROW = 16 << 20 };

/* Skips the byte order mark of some editors. */
static void skip_mark(FILE *f)
{
	char head[3];

	rewind(f);
	if (!vfm_has_byte_order_mark(head, fread(head, 1, 3, f)))
		rewind(f);
}

/* Skips the first line if it is "sep=;", which Excel reads and does not show.  Returns its separator; 0: none. */
static char skip_sep_line(FILE *f)
{
	off_t start = ftello(f);
	char head[6] = "";
	int end;

	if (fread(head, 1, 5, f) == 5 && !strncasecmp(head, "sep=", 4) && head[4] && strchr("\t,;|:^~ ", head[4])) {
		end = getc(f);
		if (end == '\r' && (end = getc(f)) != '\n') {
			ungetc(end, f);
			end = '\n';
		}
		if (end == '\n' || end == EOF)
			return head[4];
	}
	fseeko(f, start, SEEK_SET);
	return 0;
}

/* Returns the separator of the first line, and sets *cr_ends: the line ends with a CR alone. */
static char find_separator(FILE *f, bool *cr_ends)
{
	bool quoted = false, has_tab = false, has_comma = false, has_semicolon = false;
	int c;

	*cr_ends = false;
	while ((c = getc(f)) != EOF) {
		if (c == '"')
			quoted = !quoted;
		if (quoted)
			continue;
		if (c == '\r')
			*cr_ends = getc(f) != '\n';
		if (c == '\n' || c == '\r')
			break;
		has_tab |= c == '\t';
		has_comma |= c == ',';
		has_semicolon |= c == ';';
	}
	return has_tab ? '\t' : !has_comma && has_semicolon ? ';' : ',';
}

int vfm_csv_open(struct vfm_csv *c, FILE *f, const char *name, char sep, struct vfm_err *err)
{
	char named, found;
	off_t start;

	*c = (struct vfm_csv){.f = f, .name = name};
	skip_mark(f);
	named = skip_sep_line(f);
	c->lines = named != 0;
	start = ftello(f);
	found = find_separator(f, &c->cr_ends);
	c->sep = sep ? sep : named ? named : found;
	fseeko(f, start, SEEK_SET);
	return ferror(f) ? vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", name) : 0;
}

void vfm_csv_close(struct vfm_csv *c)
{
	free(c->buf);
	free(c->starts);
	free(c->cells);
	*c = (struct vfm_csv){0};
}

static void add_char(struct vfm_csv *c, int ch)
{
	vfm_grow(&c->buf, &c->buf_cap, c->len + 1, 1);
	c->buf[c->len++] = (char)ch;
}

static void begin_cell(struct vfm_csv *c)
{
	vfm_grow(&c->starts, &c->starts_cap, (size_t)c->n + 1, sizeof(c->starts[0]));
	c->starts[c->n++] = c->len;
}

/* Reads a character; a line end of any kind is '\n'.  A CR alone is one if the first line ends with it: Python's csv
 * and pandas leave other CRs unquoted. */
static int read_char(struct vfm_csv *c, bool raw)
{
	int ch = getc_unlocked(c->f), next;

	if (ch == '\r' && !raw) {
		next = getc_unlocked(c->f);
		if (next != '\n' && next != EOF)
			ungetc(next, c->f);
		if (next == '\n' || next == EOF || c->cr_ends)
			ch = '\n';
	}
	c->lines += ch == '\n';
	return ch;
}

/* Ends the reading: after such a fault no row can be told from another. */
static int fail_for_good(struct vfm_csv *c, int64_t line, const char *why, struct vfm_err *err)
{
	c->ended = true;
	vfm_fail(err, VFM_EINPUT, "%s:%lld: %s; the rest is not read", c->name, (long long)line, why);
	return -2;
}

static const char too_long[] = "the row exceeds 16 MiB (a quote that does not end?)";
static const char zero_byte[] = "a zero byte: this is no text";

/* Reads to the closing quote.  Returns the character after it, or -2. */
static int read_quoted(struct vfm_csv *c, int64_t begin, struct vfm_err *err)
{
	for (;;) {
		int ch = read_char(c, true);

		if (ch == EOF)
			return fail_for_good(c, begin, "the quoted cell that begins here does not end", err);
		if (!ch)
			return fail_for_good(c, c->lines + 1, zero_byte, err);
		if (c->len > MAX_ROW)
			return fail_for_good(c, begin, too_long, err);
		if (ch == '"') {
			ch = read_char(c, false);
			if (ch != '"')
				return ch;
		}
		add_char(c, ch);
	}
}

/* Reads from ch to the end of the cell.  Returns the character there, or -2. */
static int read_unquoted(struct vfm_csv *c, int ch, struct vfm_err *err)
{
	while (ch != EOF && ch != '\n' && ch != c->sep) {
		if (!ch)
			return fail_for_good(c, c->line, zero_byte, err);
		if (c->len > MAX_ROW)
			return fail_for_good(c, c->line, too_long, err);
		add_char(c, ch);
		ch = read_char(c, false);
	}
	return ch;
}

/* Skips the rest of a row with a fault. */
static int fail_behind_quote(struct vfm_csv *c, int ch, struct vfm_err *err)
{
	int64_t line = c->lines + 1; /* ch is no line end */

	while (ch != EOF && ch != '\n')
		ch = read_char(c, false);
	return vfm_fail(err, VFM_EINPUT, "%s:%lld: text after the closing quote of a cell", c->name, (long long)line);
}

/* Reads the cells of a row whose first character is ch. */
static int read_row(struct vfm_csv *c, int ch, struct vfm_err *err)
{
	for (;; ch = read_char(c, false)) {
		begin_cell(c);
		if (ch == '"')
			ch = read_quoted(c, c->lines + 1, err);
		else
			ch = read_unquoted(c, ch, err);
		if (ch == -2)
			return VFM_EINPUT;
		if (ch != EOF && ch != '\n' && ch != c->sep)
			return fail_behind_quote(c, ch, err);
		add_char(c, 0);
		if (c->len > MAX_ROW) {
			fail_for_good(c, c->line, too_long, err);
			return VFM_EINPUT;
		}
		if (ch != c->sep)
			return 1;
	}
}

int vfm_csv_next(struct vfm_csv *c, struct vfm_err *err)
{
	int ch = '\n', rc;

	if (c->ended)
		return 0;
	c->n = 0;
	c->len = 0;
	while (ch == '\n') {
		c->line = c->lines + 1;
		ch = read_char(c, false);
	}
	rc = ch == EOF ? 0 : read_row(c, ch, err);
	if (ferror(c->f))
		return vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", c->name);
	if (rc != 1)
		return rc;
	vfm_grow(&c->cells, &c->cells_cap, (size_t)c->n, sizeof(c->cells[0]));
	for (int i = 0; i < c->n; i++) {
		size_t end = i + 1 < c->n ? c->starts[i + 1] : c->len;

		c->cells[i] = (struct vfm_csv_cell){c->buf + c->starts[i], end - c->starts[i] - 1};
	}
	return 1;
}
