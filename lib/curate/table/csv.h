/* csv.h - reads rows of comma-separated values (RFC 4180), also with tabs or other separators.
 *
 * A cell that begins with a quote ends with one, and may have separators, line ends, and quotes (doubled) within.  A
 * quote within another cell is literal.  Rows end with LF or CRLF, or also with CR if the first one does; otherwise a
 * CR alone is text.  Empty lines are skipped, as are a byte order mark and a first line "sep=C", where C is the
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
	/* the row: n cells, each with a NUL after its text; valid until the next call */
	int n;
	struct vfm_csv_cell {
		const char *s;
		size_t len;
	} * cells;
	int64_t line; /* where the row begins, from 1 */
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

/* f is seekable and stays the caller's; `name` is for messages, and outlives *c.  sep 0: the separator of a line
 * "sep=C", or the first tab, comma or semicolon in the first line outside of quotes, else a comma. */
int vfm_csv_open(struct vfm_csv *c, FILE *f, const char *name, char sep, struct vfm_err *err);
void vfm_csv_close(struct vfm_csv *c);

/* Reads a row.  Returns 1; 0 at the end; VFM_EINPUT for a bad row, which err names with its line; VFM_EENV: the file
 * cannot be read.  After a bad row the next call reads the next row.  It returns 0 after a cell without end, a row that
 * is too long, or a zero byte, because no further row can be found then. */
int vfm_csv_next(struct vfm_csv *c, struct vfm_err *err);

#endif
