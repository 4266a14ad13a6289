/* curate.h - the stages of vfm-curate.  Each has its own file and one line in the table of main.c.
 *
 * A stage is a verb (io/opt.h): argv[0] is its name, it parses its own options and returns 0, VFM_OPT_DONE or a
 * negative code.  VFM_EINPUT with an empty message: some records failed; each contains its error.
 */
#ifndef VFM_CURATE_H
#define VFM_CURATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/opt.h"
#include "media/av/probe.h"

int curate_fetch(int argc, char **argv, struct vfm_err *err);
int curate_index(int argc, char **argv, struct vfm_err *err);
int curate_probe(int argc, char **argv, struct vfm_err *err);
int curate_table(int argc, char **argv, struct vfm_err *err);
int curate_join(int argc, char **argv, struct vfm_err *err);
int curate_split(int argc, char **argv, struct vfm_err *err);
int curate_clip(int argc, char **argv, struct vfm_err *err);
int curate_score(int argc, char **argv, struct vfm_err *err);
int curate_hash(int argc, char **argv, struct vfm_err *err);
int curate_dedup(int argc, char **argv, struct vfm_err *err);
int curate_search(int argc, char **argv, struct vfm_err *err);
int curate_filter(int argc, char **argv, struct vfm_err *err);
int curate_sheet(int argc, char **argv, struct vfm_err *err);
int curate_stats(int argc, char **argv, struct vfm_err *err);
int curate_bucket(int argc, char **argv, struct vfm_err *err);
int curate_caption(int argc, char **argv, struct vfm_err *err);
int curate_embed(int argc, char **argv, struct vfm_err *err);
int curate_encode(int argc, char **argv, struct vfm_err *err);
int curate_decode(int argc, char **argv, struct vfm_err *err);
int curate_shard(int argc, char **argv, struct vfm_err *err);
int curate_verify(int argc, char **argv, struct vfm_err *err);
int curate_provenance(int argc, char **argv, struct vfm_err *err);
int curate_report(int argc, char **argv, struct vfm_err *err);
int curate_run(int argc, char **argv, struct vfm_err *err);
int curate_synth(int argc, char **argv, struct vfm_err *err);

extern const struct vfm_verb curate_stages[]; /* ends in a NULL name */

/* Sets the keys of a record that `probe` reads from a file. */
void curate_set_facts(json_t *rec, const struct vfm_probe *p);
/* Parses --size WxH; width and height must be multiples of unit_w and unit_h. */
int curate_parse_size(const char *text, int unit_w, int unit_h, int *width, int *height, struct vfm_err *err);
/* Parses --frames: a number, or "bucket".  NULL: 0, all frames. */
int curate_parse_frames(const char *text, int64_t *frames, bool *of_bucket, struct vfm_err *err);
/* Parses --sep of CSV; NULL: *sep is 0. */
int curate_parse_sep(const char *text, char *sep, struct vfm_err *err);
/* Checks --codec and --crf of written videos. */
int curate_check_codec(const char *codec, int64_t crf, struct vfm_err *err);

#endif
