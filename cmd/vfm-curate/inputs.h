/* inputs.h - the files that a first stage works on: operands, the files of folders, and names on stdin. */
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
	bool all;                            /* files of folders count by every name */
	bool (*is_wanted)(const char *name); /* else by these */
	struct vfm_named left_out;           /* files of folders that do not count */
	/* private */
	int at;
	bool begun, from_stdin;
	FTS *tree;
	char *line;
	size_t line_cap;
};

/* 1 = *path is the next name, valid until the next call; 0 = the end; VFM_EINPUT = a folder cannot be read, continue;
 * VFM_EENV.  Folders are read in the order of their names, files whose folders begin with "." are left out.
 * Without `all`, files "._NAME" and those in "__MACOSX" are left out and counted. */
int curate_inputs_next(struct curate_inputs *in, const char **path, struct vfm_err *err);
void curate_inputs_release(struct curate_inputs *in);

#endif
