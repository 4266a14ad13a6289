/* curate.h - the stages of vfm-curate: one file each, one line each in main.c's table.
 *
 * A stage is a verb (base/opt.h): argv[0] is its name, it parses its own options and returns 0, VFM_OPT_DONE or a
 * negative code.  VFM_EINPUT with an empty message: records failed and carry their errors.
 */
#ifndef VFM_CURATE_H
#define VFM_CURATE_H

#include <jansson.h>

#include "base/err.h"
#include "media/probe.h"

int curate_probe(int argc, char **argv, struct vfm_err *err);
int curate_split(int argc, char **argv, struct vfm_err *err);
int curate_clip(int argc, char **argv, struct vfm_err *err);
int curate_score(int argc, char **argv, struct vfm_err *err);
int curate_filter(int argc, char **argv, struct vfm_err *err);
int curate_sheet(int argc, char **argv, struct vfm_err *err);
int curate_stats(int argc, char **argv, struct vfm_err *err);
int curate_encode(int argc, char **argv, struct vfm_err *err);
int curate_shard(int argc, char **argv, struct vfm_err *err);
int curate_verify(int argc, char **argv, struct vfm_err *err);
int curate_synth(int argc, char **argv, struct vfm_err *err);

/* Sets the keys that `probe` finds out. */
void curate_set_facts(json_t *rec, const struct vfm_probe *p);
/* --size WxH, both multiples of `multiple`. */
int curate_parse_size(const char *text, int multiple, int *width, int *height, struct vfm_err *err);

#endif
