/* twice.h - inputs that are read twice: pipes are copied to unlinked temporary files in TMPDIR. */
#ifndef VFM_IO_TWICE_H
#define VFM_IO_TWICE_H

#include <stdio.h>

#include "base/err.h"

struct vfm_twice { /* `= {0}` before open; close in any case */
	int n;
	char **paths; /* [n] regular files, to be opened by name: the inputs, or their copies; valid until close */
	/* private */
	FILE **copies; /* [n], NULL for an input that is a regular file */
};

/* files [n]; n 0, or the name "-": stdin.  VFM_EINPUT: an input cannot be read; VFM_EENV: it cannot be copied. */
int vfm_twice_open(struct vfm_twice *t, char *const *files, int n, struct vfm_err *err);
void vfm_twice_close(struct vfm_twice *t);

#endif
