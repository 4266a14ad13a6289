/* ahead.h - what the stages that decode videos compute for later stages of their pipe or run (data/record/ahead.h). */
#ifndef VFM_CURATE_AHEAD_H
#define VFM_CURATE_AHEAD_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>

#include "base/err.h"
#include "data/record/ahead.h"
#include "data/record/sample_set.h"
#include "media/pass/pass.h"

/* The later stages and their options.  `= CURATE_AHEAD(self, jobs)`; the first record finds them. */
struct curate_ahead {
	const char *self; /* "probe", "split", "clip" or "score" */
	int jobs;
	pthread_mutex_t lock;
	bool is_found;
	struct vfm_later_stages later;
	bool split, clip, score, hash; /* stages that take results */
	struct vfm_shots_opts shots;   /* of split */
	struct vfm_cut_opts cut;       /* of clip, and its folder */
	const char *dir;
	char *prefix;              /* of the names of its files: ".ahead-RUN-PROCESS-"; owned */
	struct vfm_sample_set ids; /* of the sources whose clips were written: clip drops copies of a source */
};
#define CURATE_AHEAD(self_, jobs_)                                                                                     \
	{                                                                                                              \
		.self = self_, .jobs = (int)(jobs_), .lock = PTHREAD_MUTEX_INITIALIZER                                 \
	}

/* Finds the later stages at the first call.  Returns whether one of them takes results.  Thread-safe. */
bool curate_ahead_is_wanted(struct curate_ahead *a);
void curate_ahead_release(struct curate_ahead *a);

/* Sets the options of a pass for these stages.  The caller has set video, facts and, if it is split, shots.  id: of the
 * source; NULL: none. */
void curate_ahead_pass_opts(struct curate_ahead *a, const char *id, struct vfm_pass_opts *o);
/* Returns a list of the keys of each span of the pass (curate_span_keys), with the results for its clip. */
json_t *curate_ahead_spans(struct vfm_pass *p, double min_s);
/* Puts the results for an image into its record. */
void curate_ahead_put_image(json_t *rec, const struct vfm_pass *p);
/* Scores a clip or image, or hashes it for later stages, or both, in one decode.  Puts the results for later stages
 * into the record.  score: NULL, or the result for the caller.  VFM_EINPUT: the caller does its work alone. */
int curate_ahead_analyze(struct curate_ahead *a, json_t *rec, const char *src, const struct vfm_score_opts *o,
	struct vfm_score *score, struct vfm_err *err);

/* ---- options and results of the stages ---- */

/* Parse the command line of a stage.  Return whether another process can compute its results, with the options set. */
bool curate_split_opts(int argc, char **argv, struct vfm_shots_opts *o);
bool curate_clip_opts(int argc, char **argv, struct vfm_cut_opts *o, const char **dir);
bool curate_score_is_plain(int argc, char **argv);
bool curate_hash_is_plain(int argc, char **argv);

/* Returns the keys that split sets in the record of span i. */
json_t *curate_span_keys(const struct vfm_shots *s, int64_t i, double min_s);
json_t *curate_score_json(const struct vfm_score *s);
json_t *curate_hash_json(const struct vfm_clip_hash *h);
/* Returns the result for clip: the name of the file in its folder, and its properties. */
json_t *curate_cut_json(const char *file, const struct vfm_cut_result *r);

#endif
