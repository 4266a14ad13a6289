/* csv.h - reads rows of comma-separated values (RFC 4180), also with tabs or other separators.
 *
 * A cell that begins with a quote ends with one, and may contain separators, line ends, and doubled quotes.  A quote
 * within any other cell is literal.  Rows end with LF or CRLF.  They also end with CR if the first row does; otherwise
 * a lone CR is text.  Empty lines are skipped, and so are a byte order mark and a first line "sep=C", where C is the
 * separator.  A row has at most 16 MiB.
 */
#ifndef VFM_CURATE_TABLE_CSV_H
#define VFM_CURATE_TABLE_CSV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct vfm_csv {
	/* the row: n cells, each followed by a NUL; valid until the next call */
	int n;
	struct vfm_csv_cell {
		const char *s;
		size_t len;
	} * cells;
	int64_t line; /* start of the row, from 1 */
	char sep;
	/* private */
	FILE *f;
	const char *name;
	int64_t lines; /* line ends read */
	char *buf;
	size_t len, buf_cap;
	size_t *starts;
	size_t starts_cap, cells_cap;
	bool ended, cr_ends;
};

/* f must be seekable and stays the caller's.  `name` is for messages, and must outlive *c.  sep 0: taken from a line
 * "sep=C"; else the first tab, comma or semicolon outside of quotes in the first line; else a comma. */
int vfm_csv_open(struct vfm_csv *c, FILE *f, const char *name, char sep, struct vfm_err *err);
void vfm_csv_close(struct vfm_csv *c);

/* Reads a row.  Returns 1, or 0 at the end.  VFM_EINPUT: a bad row, which err names with its line; the next call reads
 * the next row.  After a cell without end, a row that is too long, or a zero byte, the next call returns 0, because no
 * further row can be found.  VFM_EENV: the file cannot be read. */
int vfm_csv_next(struct vfm_csv *c, struct vfm_err *err);

#endif
