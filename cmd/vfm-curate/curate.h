/* curate.h - the stages of vfm-curate: one file each, one line each in main.c's table.
 *
 * A stage gets argv with argv[0] = its own name, and returns the exit status.
 */
#ifndef VFM_CURATE_H
#define VFM_CURATE_H

#include <jansson.h>

#include "base/err.h"
#include "media/probe.h"

int curate_probe(int argc, char **argv);
int curate_split(int argc, char **argv);
int curate_clip(int argc, char **argv);
int curate_score(int argc, char **argv);
int curate_filter(int argc, char **argv);
int curate_sheet(int argc, char **argv);
int curate_stats(int argc, char **argv);
int curate_encode(int argc, char **argv);
int curate_shard(int argc, char **argv);
int curate_verify(int argc, char **argv);
int curate_synth(int argc, char **argv);

/* Sets the keys that `probe` finds out. */
void curate_set_facts(json_t *rec, const struct vfm_probe *p);
/* --size WxH, both multiples of `multiple`. */
int curate_parse_size(const char *text, int multiple, int *width, int *height, struct vfm_err *err);

#endif
