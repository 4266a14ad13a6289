/* caption_table.h - a table that gives the captions of files by name.
 *
 *   rows       JSON Lines, a JSON array, CSV or Parquet with a column of names and one of captions (caption_value.h)
 *   an object  {"a.mp4":"a caption","b.mp4":["one","another"]}, in a file named *.json
 *   two lists  names in one text file, captions in another, line by line
 *
 * Names are looked up without "./" and "//".  The names are in memory, the captions in a file of the caller.  Used
 * by one thread.
 */
#ifndef VFM_CURATE_TABLE_CAPTION_TABLE_H
#define VFM_CURATE_TABLE_CAPTION_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "io/names.h"

struct vfm_caption_table { /* `= {0}` before open; close in any case */
	char *path;        /* of the table, or of its list of captions */
	struct vfm_names names;
	struct vfm_caption_row {
		int64_t place;    /* its line, or number in an object; from 1 */
		uint64_t at, len; /* its caption as JSON in the store; len 0: it has none */
		uint64_t user;    /* of the caller; 0 at first */
	} * rows;                 /* [names.n] */
	size_t rows_cap;
};

/* Reads a table; `store` is open for reading and writing, and stays the caller's.  `maybe`: the file need not be a
 * table of captions.  If it has no column of names, or is an object whose first key does not name a media file, the
 * call returns 0 with the reason in err.  Otherwise it returns 1.  VFM_EUSAGE names the fault and its line: a row
 * without a name, an invalid caption, or two rows with the same name and other captions.  VFM_EENV: no space, or no
 * child for Parquet. */
int vfm_caption_table_open(struct vfm_caption_table *t, const char *path, FILE *store, bool maybe, struct vfm_err *err);
/* Reads two lists.  Also VFM_EUSAGE: they have different numbers of lines.  Empty lines at the end do not count. */
int vfm_caption_lists_open(
	struct vfm_caption_table *t, const char *names, const char *captions, FILE *store, struct vfm_err *err);
void vfm_caption_table_close(struct vfm_caption_table *t);

/* Sets *caption, which the caller owns, to that of row i; NULL: the row has none.  VFM_EENV: the store cannot be
 * read. */
int vfm_caption_table_get(
	const struct vfm_caption_table *t, int64_t i, FILE *store, json_t **caption, struct vfm_err *err);

/* Returns a path without "./" and "//"; the caller frees it. */
char *vfm_plain_path(const char *path);

#endif
