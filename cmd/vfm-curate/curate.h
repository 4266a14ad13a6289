/* curate.h - the stages of vfm-curate.  Each has its own file and one line in CURATE_STAGE_LIST.
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
#include "data/record/stage.h"
#include "io/opt.h"
#include "media/av/probe.h"

/* X(NAME, summary for -h), in the order of a pipeline; curate_NAME is the function of the stage. */
#define CURATE_STAGE_LIST(X)                                                                                           \
	X(fetch, "download the files of URLs")                                                                         \
	X(index, "list the videos and images in WebDataset tars, or index latents")                                    \
	X(probe, "read the size, rate and length of video and image files")                                            \
	X(table, "read the rows of CSV and JSON tables as records")                                                    \
	X(join, "add columns of a table to records")                                                                   \
	X(split, "find the shots of videos, one record per clip")                                                      \
	X(clip, "write each clip to a file of its own")                                                                \
	X(score, "measure motion, sharpness, brightness, text and more")                                               \
	X(filter, "drop records by limits of their numbers, or by the held-out split")                                 \
	X(hash, "compute perceptual hashes, for dedup")                                                                \
	X(dedup, "drop near-duplicates, and keep the best of each group")                                              \
	X(bucket, "choose the size and length of each clip, for batches of equal shapes")                              \
	X(caption, "caption clips with an outside model")                                                              \
	X(embed, "compute vectors of clips and captions with an outside model")                                        \
	X(search, "find the clips nearest to a text, a clip or a vector")                                              \
	X(encode, "turn clips and captions into latents and text embeddings")                                          \
	X(decode, "turn latents back into videos")                                                                     \
	X(shard, "write latents and texts as a dataset of tar shards")                                                 \
	X(verify, "check every byte of a dataset")                                                                     \
	X(provenance, "print the stages, options and models that made a dataset")                                      \
	X(sheet, "write a page of the frames of clips")                                                                \
	X(stats, "summarize the keys of records: ranges, texts, reasons of drops")                                     \
	X(report, "write a page of distributions, pictures and duplicates")                                            \
	X(run, "run the stages of a pipeline, and continue an interrupted run")                                        \
	X(synth, "make small captioned videos of moving shapes")

#define STAGE_FUNCTION(name, summary) int curate_##name(int argc, char **argv, struct vfm_err *err);
CURATE_STAGE_LIST(STAGE_FUNCTION)
#undef STAGE_FUNCTION

extern const struct vfm_verb curate_stages[]; /* ends in a NULL name */

/* Parses the options of a stage that reads records.  Returns 0, VFM_OPT_DONE or VFM_EUSAGE. */
static inline int curate_parse(
	const struct vfm_cmd *cmd, struct vfm_stage *stage, int argc, char **argv, struct vfm_err *err)
{
	stage->files = argv + 1;
	return vfm_opt_parse(cmd, argc, argv, &stage->n_files, err);
}

/* Sets the keys of a record that `probe` reads from a file. */
void curate_set_facts(json_t *rec, const struct vfm_probe *p);
/* Sets *path to the output file of this share: `pattern` (-o) with %t replaced by the number of the share.  The caller
 * frees *path. */
int curate_output(char **path, const char *pattern, const struct vfm_stage *stage, struct vfm_err *err);
/* Parses --size WxH; width and height must be multiples of unit_w and unit_h. */
int curate_parse_size(const char *text, int unit_w, int unit_h, int *width, int *height, struct vfm_err *err);
/* Parses --frames: a number, or "bucket".  NULL: 0, all frames. */
int curate_parse_frames(const char *text, int64_t *frames, bool *of_bucket, struct vfm_err *err);
/* Parses --sep of CSV; NULL: *sep is 0. */
int curate_parse_sep(const char *text, char *sep, struct vfm_err *err);
/* Checks --codec of written videos. */
int curate_check_codec(const char *codec, struct vfm_err *err);

#endif
