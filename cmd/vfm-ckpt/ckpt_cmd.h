/* ckpt_cmd.h - the verbs of vfm-ckpt and their shared helpers. */
#ifndef CKPT_CMD_H
#define CKPT_CMD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "io/opt.h"
#include "io/table.h"

#define OPT_RAW(dst)                                                                                                   \
	{                                                                                                              \
		VFM_OPT_FLAG, 0, "raw", NULL, "files of other programs: names and shapes as they are there", dst       \
	}

/* An open checkpoint and the tensors of one part, or of all parts. */
struct view {
	struct vfm_ckpt *c;
	const struct vfm_ckpt_tensor **t; /* [n] by name */
	int n;
	size_t cut; /* length of the prefix to omit from each printed name */
};
/* Opens a view of `part` (NULL: all parts); plain files have no parts and ignore it.  raw: see struct vfm_ckpt_how.
 * VFM_EUSAGE: the part has no tensors. */
int view_open(struct view *v, const char *operand, const char *part, bool raw, struct vfm_err *err);
void view_close(struct view *v);

/* Parses the options and sets *n to the number of operands.  Returns 0, VFM_OPT_DONE or a negative code.  VFM_EUSAGE:
 * an invalid option, or n outside [min, max]; max < 0: no limit. */
int verb_parse(const struct vfm_cmd *cmd, int argc, char **argv, int min, int max, int *n, struct vfm_err *err);
/* As verb_parse for "[--raw] [--format FORMAT] CKPT [GLOB ...]".  Opens a view of the tensors that match any glob. */
int verb_open_list(struct view *v, struct vfm_table_opts *table, const char *name, const char *summary, int argc,
	char **argv, struct vfm_err *err);
/* Prints t if rc is 0, and frees it.  Returns rc, or the code of a failure to print. */
int verb_print(struct vfm_table *t, const struct vfm_table_opts *o, int rc, struct vfm_err *err);
void shape_text(const struct vfm_ckpt_tensor *t, char *buf, size_t len);
void bytes_text(int64_t bytes, char *buf, size_t len);

int verb_info(int argc, char **argv, struct vfm_err *err);
int verb_ls(int argc, char **argv, struct vfm_err *err);
int verb_tree(int argc, char **argv, struct vfm_err *err);
int verb_stat(int argc, char **argv, struct vfm_err *err);
int verb_check(int argc, char **argv, struct vfm_err *err);
int verb_diff(int argc, char **argv, struct vfm_err *err);
int verb_hash(int argc, char **argv, struct vfm_err *err);
int verb_prune(int argc, char **argv, struct vfm_err *err);
int verb_import(int argc, char **argv, struct vfm_err *err);
int verb_export(int argc, char **argv, struct vfm_err *err);
int verb_merge(int argc, char **argv, struct vfm_err *err);
int verb_reshard(int argc, char **argv, struct vfm_err *err);

#endif
