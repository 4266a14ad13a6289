/* prompts.h - files of prompts, for vfm-sample and vfm-train --prompts (vfm-prompts(5)).
 *
 * FILE.jsonl has JSON Lines, FILE.json an array of such objects, FILE.txt a prompt in each line.  Another file, or
 * stdin, has JSON Lines if it begins with '{', else text.  Empty lines, and text lines that begin with '#', are
 * skipped.  A text line may end in options of kohya's and musubi-tuner's prompt files (--w 832 --h 480 --f 81 ...),
 * which become the keys of the same meaning.
 */
#ifndef VFM_TRAIN_SAMPLE_PROMPTS_H
#define VFM_TRAIN_SAMPLE_PROMPTS_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"

/* How one prompt is sampled.  The strings are borrowed. */
struct vfm_prompt {
	const char *caption, *negative; /* "": the null text */
	const char *image, *last_image; /* files of given pictures; NULL: none */
	int width, height;              /* 0: not given */
	int64_t frames;                 /* 0: not given */
	int fps_num, fps_den;
	int64_t seed, steps;
	double cfg;
};

/* Calls take(ctx, line, caption) for each prompt of a file ("-": stdin).  line: the object of a JSON line, or the one
 * that a text line means.  caption: its text; of several named captions that of `name`.  VFM_EUSAGE names file and
 * line: not JSON, no caption, an unknown key or option, a value out of range. */
int vfm_prompts_each(const char *path, const char *name,
	int (*take)(void *ctx, const json_t *line, const char *caption, struct vfm_err *err), void *ctx,
	struct vfm_err *err);

/* Overrides fields of p by the keys of a line, which must outlive p.  A record (with src) or a sample of a
 * shard (with key) describes another file: only its negative is taken.  line NULL: a no-op. */
int vfm_prompt_apply(struct vfm_prompt *p, const json_t *line, struct vfm_err *err);

/* Parses "832x480", and "16" or "24000/1001". */
int vfm_prompt_size(const char *text, int *width, int *height, struct vfm_err *err);
int vfm_prompt_rate(const char *text, int *num, int *den, struct vfm_err *err);

#endif
