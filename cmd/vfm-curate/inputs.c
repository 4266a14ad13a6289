/* inputs.c - yields input files one at a time: operands, folders in depth, or lines of stdin. */
#include "inputs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_names(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Files of macOS with attributes of other files: "._x.mp4", and in archives also "__MACOSX/._x.mp4". */
static bool is_of_macos(const FTSENT *e)
{
	if (strncmp(e->fts_name, "._", 2) == 0)
		return true;
	for (const FTSENT *at = e->fts_parent; at->fts_level > FTS_ROOTLEVEL; at = at->fts_parent)
		if (strcmp(at->fts_name, "__MACOSX") == 0)
			return true;
	return false;
}

/* Returns whether a file counts: each operand, and in folders those that are wanted.  Opening it reports a dangling
 * link, a FIFO and other files that cannot be read. */
static bool is_wanted(struct curate_inputs *in, const FTSENT *e)
{
	if (e->fts_level == FTS_ROOTLEVEL || in->all || (in->is_wanted(e->fts_name) && !is_of_macos(e)))
		return true;
	if (!in->is_kept || is_of_macos(e) || !in->is_kept(in->ctx, e->fts_path))
		vfm_named_add(&in->left_out, e->fts_path);
	return false;
}

/* 1 = *path is set (until the next call), 0 = the tree is done. */
static int next_in_tree(struct curate_inputs *in, const char **path, struct vfm_err *err)
{
	FTSENT *e;

	while (errno = 0, (e = fts_read(in->tree))) {
		*path = e->fts_path;
		switch (e->fts_info) {
		case FTS_D:
			if (e->fts_level > FTS_ROOTLEVEL && e->fts_name[0] == '.')
				fts_set(in->tree, e, FTS_SKIP);
			break;
		case FTS_DP:
			break;
		case FTS_DC:
			return vfm_fail(err, VFM_EINPUT, "'%s' is a folder that contains itself", e->fts_path);
		case FTS_NS: /* opening the file reports the error */
			return 1;
		case FTS_DNR:
		case FTS_ERR:
			errno = e->fts_errno;
			return vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", e->fts_path);
		default:
			if (is_wanted(in, e))
				return 1;
		}
	}
	if (errno) /* no memory; folders that cannot be read are entries */
		return vfm_fail_errno(err, VFM_EENV, "cannot walk the folder");
	fts_close(in->tree);
	in->tree = NULL;
	return 0;
}

static int next_line(struct curate_inputs *in, const char **path, struct vfm_err *err)
{
	char end = in->nul ? 0 : '\n';
	ssize_t n;

	while ((n = getdelim(&in->line, &in->line_cap, end, stdin)) > 0) {
		if (in->line[n - 1] == end)
			in->line[--n] = 0;
		if (n == 0)
			continue;
		*path = in->line;
		return 1;
	}
	if (!feof(stdin)) /* an error, or no memory for the line */
		return vfm_fail_errno(err, VFM_EENV, "cannot read <stdin>");
	in->from_stdin = false;
	return 0;
}

static int next_operand(struct curate_inputs *in, struct vfm_err *err)
{
	char *roots[2] = {NULL, NULL};

	if (in->at >= in->n_operands)
		return 0;
	roots[0] = in->operands[in->at++];
	if (!strcmp(roots[0], "-")) {
		in->from_stdin = true;
		return 1;
	}
	in->tree = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, compare_names);
	if (!in->tree)
		return vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", roots[0]);
	return 1;
}

int curate_inputs_next(struct curate_inputs *in, const char **path, struct vfm_err *err)
{
	int rc;

	if (!in->begun)
		in->from_stdin = in->n_operands == 0;
	in->begun = true;
	for (;;) {
		if (in->from_stdin)
			rc = next_line(in, path, err);
		else if (in->tree)
			rc = next_in_tree(in, path, err);
		else
			rc = 0;
		if (rc == 0)
			rc = next_operand(in, err);
		else
			return rc;
		if (rc <= 0)
			return rc;
	}
}

void curate_inputs_release(struct curate_inputs *in)
{
	if (in->tree)
		fts_close(in->tree);
	free(in->line);
	*in = (struct curate_inputs){0};
}
