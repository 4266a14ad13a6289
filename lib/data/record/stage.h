/* stage.h - the loop that all stages of vfm-curate share: JSON Lines in, JSON Lines out.  A stage gives one function
 * for one record; the loop does the rest (vfm-curate(1)):
 *
 *   reading     the named files, or stdin; a line that is not a record becomes a record with "error"
 *   passing on  records with "error" or "drop" stay unchanged; unknown keys are kept; "v":1 comes first
 *   --part I/N  keeps the records of share I (share.h)
 *   fingerprint sets by.STAGE in each output record (stage_work.c)
 *   headers     pass on the provenance of the inputs (stage_input.c)
 *   --done FILE copies finished records of an earlier run
 *   -j N        N threads; outputs keep the order of inputs; memory holds at most a few records per thread
 *   batches     a stage may process consecutive records with an equal key together
 *   failures    the record gets "error":"…"; processing continues
 *   counting    in = out + dropped + failed, on stderr at the end
 */
#ifndef VFM_DATA_RECORD_STAGE_H
#define VFM_DATA_RECORD_STAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "data/record/reasons.h"
#include "data/record/record.h"
#include "io/opt.h"

/* ---- options that every stage takes ---- */

struct vfm_stage_opts {
	int64_t jobs;      /* -j; 0 = 1 */
	const char *share; /* "I/N", I from 0, or "task"; NULL: from Slurm's environment, else all records (share.h) */
	const char *done;  /* %t is replaced by the number of the share (vfm_share_file); NULL: none */
};

/* Rows of a struct vfm_opt table; `o` is a struct vfm_stage_opts *. */
#define VFM_STAGE_OPTS(o)                                                                                              \
	{VFM_OPT_GROUP, 0, NULL, NULL, "Shared by all stages:", NULL},                                                 \
		{VFM_OPT_INT, 'j', "jobs", "N", "work on N records at once", &(o)->jobs},                              \
		{VFM_OPT_STR, 0, "part", "I/N", "do only the I-th of N shares, I from 0; task: that of Slurm's task",  \
			&(o)->share},                                                                                  \
	{                                                                                                              \
		VFM_OPT_STR, 0, "done", "FILE", "copy finished records of an earlier run from FILE (%t: the share)",   \
			&(o)->done                                                                                     \
	}

/* --timeout of a stage that reads media; dst: double *, seconds. */
#define VFM_TIMEOUT_OPT(help, dst)                                                                                     \
	{                                                                                                              \
		VFM_OPT_NUM, 0, "timeout", "SECONDS", help, dst, VFM_ABOVE_0, 1e9                                      \
	}

/* Properties of a stage that a run (curate/pipeline) uses; vfm_cmd.stage is NULL if it has none of them.  Lists of
 * options end in NULL. */
struct vfm_stage_traits {
	const char *const *children; /* NULL, or options that start -j children; messages name the first option */
	/* NULL, or options of models in this process, for which the stage chooses its number of threads */
	const char *const *models;
	bool has_resume; /* a run continues it with --resume instead of --done */
	bool reads_all;  /* it reads all records before it writes one, and has neither --done nor --part */
};

/* ---- a stage ---- */

/* Collects the outputs of one record. */
struct vfm_stage_out;

/* Emits `rec` as an output of the current input record; takes ownership of the reference.  If a stage emits at least
 * one record, the loop does not write the input record. */
void vfm_stage_emit(struct vfm_stage_out *out, json_t *rec);

/* Sets "drop":"<stage>: <reason>" on a record. */
void vfm_stage_drop(json_t *rec, const char *stage, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Processes one record.  It may change `rec`, which belongs to the loop, in place.  `worker` is in [0, jobs), for
 * scratch memory.  Several threads call it at once unless the stage is `serial`.  Returns
 *
 * - 0: the record, or what was emitted, is written
 * - VFM_EINPUT: this record failed; err->msg becomes its "error", and its emitted records are discarded
 * - VFM_EUSAGE, VFM_EENV: the stage cannot continue; the loop stops with this code */
typedef int (*vfm_stage_fn)(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err);

/* Processes `n` consecutive records with an equal `batch_key`, none of them finished before.  Stores the result of a
 * vfm_stage_fn for each in `rc` and `err`.  The outputs must not depend on the division into batches. */
struct vfm_stage_item {
	json_t *rec;
	int rc;
	struct vfm_err err;
};
typedef void (*vfm_stage_batch_fn)(struct vfm_stage_item *items, int n, void *ctx, int worker);

/* A source of records other than JSON Lines.  Returns, like vfm_jsonl_next, 1 with a record that the caller owns, 0 at
 * the end, or VFM_EINPUT for one bad input, after which the loop continues.  One thread calls it. */
typedef int (*vfm_stage_next_fn)(void *source, json_t **rec, struct vfm_err *err);

struct vfm_jsonl_block; /* io/json.h */
struct vfm_stage_loop;

struct vfm_stage {
	const char *name; /* "score" */
	vfm_stage_fn fn;
	/* instead of fn: processes at most `max_batch` records with the same string under `batch_key`.  Not with
	 * sees_all or serial. */
	vfm_stage_batch_fn batch;
	const char *batch_key;
	int max_batch;
	/* NULL, or reads the inputs instead of the loop and passes it their lines (vfm_stage_take).  Unused in a
	 * run. */
	int (*lines)(struct vfm_stage_loop *l, const struct vfm_stage *s, struct vfm_err *err);
	void *ctx;
	struct vfm_stage_opts opts;

	/* The stage fingerprint covers the name, the input, and the following:
	 *
	 * - options: all options that change an output record or file, as text (not folders, threads, time limits);
	 *   NULL: none
	 * - version: raised when the algorithm changes
	 *
	 * outputs: NULL, or paths of file names as in vfm_done_opts ("latent", "src"); --done copies a record only if
	 * these files exist. */
	const char *options;
	int version;
	const char *const *outputs;
	/* The models that the stage uses (`maker` in provenance.h), also part of the fingerprint; NULL: none. */
	const json_t *models;
	/* NULL, or lists of keys that end in NULL, for a stage that computes the keys of `sets` only from those of
	 * `reads` and leaves all others unchanged.  The fingerprint then covers `reads` instead of the whole input, and
	 * --done copies `sets` into the input record. */
	const char *const *reads, *const *sets;

	int n_files; /* JSON Lines files to read; none or "-": stdin */
	char **files;
	vfm_stage_next_fn next; /* or: another source */
	void *source;

	int threads; /* threads that call fn; 0: -j. Differs from -j if -j is the number of children */
	/* the key that identifies a record for --part and --done; NULL: "id", or "src" without id */
	const char *key;
	/* outputs have "parent" (their input), and "siblings" and "transitions", whose sum is their number; --done
	 * copies them only if it has all of them */
	bool one_to_many;
	/* outputs are files named by id.  A second record with an id is dropped if it is equal except for its source;
	 * else it gets an error */
	bool unique_ids;
	void (*on_refused)(const json_t *rec, void *ctx); /* NULL, or gets the records that unique_ids refuses */
	bool serial;                                      /* one thread calls fn, in input order */
	bool sees_all; /* fn is also called for records with "error" or "drop", and must keep these keys */
	/* writes no records; the stage prints something else (stats).  VFM_EUSAGE: a record, or its parent, is in an
	 * earlier file */
	bool silent;
	FILE *out; /* NULL = stdout */
	/* NULL, or a function that gets the chain with this stage's entry: before the first record, and before the
	 * first record after each header that adds to the chain.  Returns 0, or VFM_EUSAGE or VFM_EENV, with which the
	 * loop stops.  The thread that reads calls it. */
	int (*on_chain)(const json_t *chain, void *ctx, struct vfm_err *err);
};

struct vfm_stage_counts {
	int64_t in;                        /* records of this share */
	int64_t out;                       /* records that are neither dropped nor failed */
	int64_t dropped;                   /* with "drop", from this stage or before */
	int64_t failed;                    /* with "error", from this stage or before */
	int64_t dropped_here, failed_here; /* in this stage */
	int64_t copied;                    /* taken from --done; also counted above */
	int64_t stale;   /* in --done, but processed again: another fingerprint, or its files are missing */
	int64_t written; /* lines */
	int64_t kept;    /* output records that are neither dropped nor failed: not `out` if one_to_many */
	int64_t untimed; /* of those kept: videos without duration_s, whose seconds are in none of the sums */
	int64_t other_shares;
	/* sums of duration_s, in seconds */
	double in_s;              /* of inputs that were neither dropped nor failed before this stage */
	double kept_s, dropped_s; /* of outputs that are kept; that are dropped here */
	double missing_s;         /* if one_to_many: by which the outputs of an input are shorter than it */
	double work_s;            /* for which threads worked on these inputs */
	/* in the first stage of a run: bytes of the files of the inputs, as far as they are known */
	int64_t in_bytes;
};

/* Runs the stage and reports the counts with vfm_info.  `counts` may be NULL.  Returns 0 if all records succeeded;
 * VFM_EINPUT if some failed here (err stays empty, since the records say why); VFM_EUSAGE or VFM_EENV if the stage
 * could not continue. */
int vfm_stage_run(const struct vfm_stage *s, struct vfm_stage_counts *counts, struct vfm_err *err);

/* ---- a stage that reads its inputs itself (vfm_stage.lines), as blocks of lines on several threads ----
 *
 * Its function passes the loop the lines in blocks, in order, from one thread at a time.  It may also pass finished
 * outputs of records: with the fingerprint of the stage, or unchanged if the record has "error" or "drop".  The loop
 * makes all other outputs.  Finished outputs are allowed without --part, --done and sees_all. */

struct vfm_stage_output {
	size_t len;           /* of the line, including its newline; 0: no finished output */
	bool is_passed;       /* unchanged: the record had "error" or "drop" */
	bool failed, dropped; /* the output has "error" or "drop" */
	const char *reason;   /* of a drop that is not passed: a constant, without the stage */
	double duration_s;    /* of the record; 0: none */
	bool is_image;
	/* for unique_ids: of the id (vfm_sample_hash), and of everything but vfm_stage_source_keys */
	uint64_t hash[2], content;
};

/* Takes the lines of a block and writes their outputs.  o [b->n] describes the outputs, which are consecutive in
 * `text`.  The loop makes its own output if a header is due, or if another record had the id.  Returns 0, or the code
 * with which the stage must end. */
int vfm_stage_take(struct vfm_stage_loop *l, const struct vfm_jsonl_block *b, const struct vfm_stage_output *o,
	const char *text, struct vfm_err *err);

/* The keys of a record that its fingerprint excludes, and the keys that may differ between records of one id. */
extern const char *const vfm_stage_uncovered_keys[], *const vfm_stage_source_keys[];
/* Returns the string that a digest puts before the record in a fingerprint; the caller frees it.  settings as in
 * provenance.h; clip: by.clip, or NULL. */
char *vfm_stage_fingerprint_head(const struct vfm_stage *s, const char *settings, const char *clip);

#endif
