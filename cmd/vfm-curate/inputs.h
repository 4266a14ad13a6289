/* inputs.h - iterates over the input files of a first stage: operands, files in folders, and names on stdin. */
#ifndef VFM_CURATE_INPUTS_H
#define VFM_CURATE_INPUTS_H

#include <fts.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"

struct curate_inputs {
	char **operands; /* [n_operands] files, folders and "-"; none: stdin */
	int n_operands;
	bool nul;                            /* names on stdin end with NUL, not with a newline */
	bool all;                            /* folders yield every file */
	bool (*is_wanted)(const char *name); /* without `all`, folders yield the files for which this returns true */
	/* NULL, or returns whether the caller accounts for a skipped file, which is then not in left_out */
	bool (*is_kept)(void *ctx, const char *path);
	void *ctx;
	struct vfm_named left_out; /* skipped files of folders */
	/* private */
	int at;
	bool begun, from_stdin;
	FTS *tree;
	char *line;
	size_t line_cap;
};

/* Returns 1 and sets *path to the next name, valid until the next call; 0 at the end; or a negative code.
 * VFM_EINPUT: a folder cannot be read; the caller may continue with the next call.  VFM_EENV: stdin or memory.
 *
 * Folders are read recursively, in the order of names.  Subfolders that begin with "." are skipped.  Without `all`,
 * files that is_wanted rejects, files "._NAME" and those in "__MACOSX" are skipped and added to left_out. */
int curate_inputs_next(struct curate_inputs *in, const char **path, struct vfm_err *err);
void curate_inputs_release(struct curate_inputs *in);

#endif
