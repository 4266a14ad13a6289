/* pass.h - decodes a video once for its facts and shots, and for the scores, hashes and files of its clips.
 *
 * The results equal those of vfm_probe_file, vfm_shots_file, vfm_cut_clips, vfm_score_file and vfm_clip_hash_file.  The
 * pass keeps the last frames: as decoded, or, with `cut`, their pictures in the clips.  When the boundaries of a clip
 * seem certain, it works on the clip's frames.  At the end it compares these boundaries with the final ones, and
 * discards the results of clips that differ.  A clip also lacks results if it is longer than the kept frames, or if its
 * work failed; the caller then works on it alone.
 *
 * Thread-safe: no shared state. */
#ifndef VFM_MEDIA_PASS_PASS_H
#define VFM_MEDIA_PASS_PASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/probe.h"
#include "media/match/clip_hash.h"
#include "media/score/score.h"
#include "media/shots/cut.h"
#include "media/shots/shots.h"

struct vfm_pass_opts {
	struct vfm_video_opts video;    /* must not deinterlace, draft or keep HDR */
	bool facts;                     /* complete `probe`; else only its info and `interlaced` count */
	struct vfm_shots_opts shots;    /* without detector; its `video` is unused */
	bool score, hash;               /* of each clip */
	const struct vfm_cut_opts *cut; /* NULL, or writes each clip; score and hash are then those of the files.
					   Sets the range and times; not with copy, audio, keep_hdr or hwaccel */
	const char *dir, *prefix;       /* of the clips: their folder, and the beginning of their names */
	size_t kept_bytes;              /* limit of the kept frames */
};

/* The results for a clip, or for a whole image. */
struct vfm_pass_clip {
	int64_t start, end;         /* frames, end exclusive */
	struct vfm_score *score;    /* NULL: none */
	struct vfm_clip_hash *hash; /* NULL: none */
	char *file;                 /* NULL: none; the caller renames or removes it */
	struct vfm_cut_result cut;  /* of the file */
};

struct vfm_pass {
	struct vfm_probe probe;
	struct vfm_shots shots;      /* shots.n is 0 for an image, or if the shots cannot be found */
	struct vfm_pass_clip *clips; /* [n_clips] those with results, by start */
	int n_clips;
};

/* VFM_EINPUT, VFM_EENV: as vfm_probe_file.  The caller releases *p after success. */
int vfm_pass_file(struct vfm_pass *p, const char *path, const struct vfm_pass_opts *o, struct vfm_err *err);
/* Discards the results of clips, with their files. */
void vfm_pass_discard_clips(struct vfm_pass *p);
/* Removes the files that the caller has not taken: those whose `file` is not NULL. */
void vfm_pass_release(struct vfm_pass *p);

/* Scores and hashes one clip of a file in one decode: `score` and `hash` may be NULL.  o: the range.  Errors are those
 * of vfm_score_file and vfm_clip_hash_file; an interlaced video has no hash here: *hashed is false. */
int vfm_pass_clip_of(const char *path, const struct vfm_score_opts *o, struct vfm_score *score,
	struct vfm_clip_hash *hash, bool *hashed, struct vfm_err *err);

#endif
