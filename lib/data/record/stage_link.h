/* stage_link.h - a stage as one process of a run (curate/pipeline/pipeline_run.h): its progress, input and workers.
 *
 * All processes of a run map the progress file.  Stage k appends its output lines to a file and publishes its progress:
 * the number of inputs done, the bytes of the file that hold their outputs, and the counts.  Stage k+1 reads that file
 * up to the published bytes and waits for more, so the files are the queues.
 *
 * A process has at most one link.  Set it before vfm_stage_run, which finds it.
 */
#ifndef VFM_DATA_RECORD_STAGE_LINK_H
#define VFM_DATA_RECORD_STAGE_LINK_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "data/record/ahead.h"
#include "data/record/stage.h"
#include "io/hash.h"

enum { VFM_PROGRESS_STAGES = 32 };

struct vfm_stage_progress {
	int64_t inputs; /* inputs whose outputs are in the file: records and headers */
	int64_t lines;  /* lines of the file, including headers */
	int64_t bytes;  /* of the file */
	uint64_t hash;  /* of the inputs of the first stage */
	struct vfm_stage_counts counts;
	struct vfm_reasons reasons; /* of this stage */
	uint32_t crc, reserved;
};

struct vfm_progress_stage {
	char identity[VFM_SHA256_HEX]; /* hash of its options; "": not begun */
	_Atomic uint32_t version;      /* progress[version % 2] is valid */
	struct vfm_stage_progress progress[2];
	_Atomic bool started, finished; /* the stage has opened its outputs once; all inputs are done */
	_Atomic int failed_records;     /* some records failed, so the status is 1 */
	/* of this process, not of the run: */
	_Atomic int64_t read; /* lines of the input */
	_Atomic int busy;     /* records being processed */
	/* processed records, which may wait for those before them: number, bytes of their files, and time of threads */
	_Atomic int64_t worked, worked_bytes, worked_us;
	char message[VFM_ERR_MAX]; /* the reason why it ended */
};

struct vfm_progress_file {
	char magic[16];
	uint32_t bytes; /* of this struct */
	int32_t n;      /* stages */
	sem_t tokens;
	_Atomic bool stop; /* the stages finish their current records and end with VFM_ESIGNAL */
	_Atomic int8_t
		update; /* 1 + the first stage whose records an update replaces, until all are set aside; 0: none */
	_Atomic int64_t total;       /* inputs of the first stage; -1: unknown */
	_Atomic int64_t total_bytes; /* of their files; valid if total is known */
	char inputs[VFM_SHA256_HEX]; /* of the names of the inputs */
	struct vfm_progress_stage stage[VFM_PROGRESS_STAGES];
};

/* Maps the progress file; creates it if absent.  Allocates its blocks, so that a full disk fails here.  VFM_EUSAGE: the
 * file is not a progress file of this version. */
int vfm_progress_file_open(struct vfm_progress_file **b, const char *path, struct vfm_err *err);
void vfm_progress_file_close(struct vfm_progress_file *b); /* accepts NULL */
/* Copies the progress of a stage, even while the stage publishes more; zeros if there is none. */
void vfm_progress_stage_read(const struct vfm_progress_stage *s, struct vfm_stage_progress *c);
/* Resets the progress of a stage, but not `started`. */
void vfm_progress_stage_reset(struct vfm_progress_stage *s);

struct vfm_stage_link {
	struct vfm_progress_file *progress;
	int index;                            /* of the stage */
	const char *in_path, *out_path;       /* in_path NULL: the first stage, which reads its own inputs */
	int64_t queue;                        /* lines by which the next stage may lag behind */
	bool takes_tokens;                    /* its work needs tokens; false: only its number of threads limits it */
	bool begins_again;                    /* its output is written again from the beginning (shard --resume) */
	bool only_counts;                     /* only sets progress->total and total_bytes */
	const struct vfm_later_stages *later; /* ahead.h; NULL: none */
	/* of stage_link.c */
	bool begun;                   /* a stage has opened it */
	struct vfm_stage_progress at; /* of the writer */
	int64_t n_read, skip;         /* number of inputs read; number of inputs to skip */
	uint64_t hash;                /* of the inputs read */
	int64_t n_bytes;              /* with only_counts: of their files */
	int64_t unpublished;          /* bytes */
	int64_t consumed;             /* bytes of in_path */
	int in_fd;
	FILE *out;
};

void vfm_stage_link_set(struct vfm_stage_link *k);
struct vfm_stage_link *vfm_stage_link(void); /* NULL: none */

/* Opens the output after the published bytes and, if the link has an input, opens it as a stream of lines (else *in is
 * NULL).  Sets *counts and *reasons to the published ones.  VFM_EENV: a file cannot be opened or cut. */
int vfm_stage_link_begin(struct vfm_stage_link *k, FILE **in, struct vfm_stage_counts *counts,
	struct vfm_reasons *reasons, struct vfm_err *err);

/* For a stage that reads all its inputs before it processes the first; it calls this before anything else.  Blocks
 * until the previous stage has finished; meanwhile any number of records may wait.  No-op for the first stage.
 * VFM_ESIGNAL: the run stops. */
int vfm_stage_link_await(struct vfm_stage_link *k, struct vfm_err *err);

/* Call for each input that was read.  `rec` is NULL for a header; `line` is the number of lines read so far.  Returns 1
 * if the input must be processed, 0 if it is done.  VFM_EUSAGE: inputs that are done have changed; VFM_ESIGNAL: the run
 * stops. */
int vfm_stage_link_read(struct vfm_stage_link *k, const json_t *rec, int64_t line, struct vfm_err *err);
/* Returns the bytes of the file of a record, or 0 if they are unknown, as for a member of a tar. */
int64_t vfm_stage_link_bytes(const json_t *rec);
/* Call at the end of the inputs; errors as above. */
int vfm_stage_link_end(struct vfm_stage_link *k, struct vfm_err *err);

void vfm_stage_link_work(struct vfm_stage_link *k); /* takes a token; blocks */
/* Returns the token, and counts the n records. */
void vfm_stage_link_rest(struct vfm_stage_link *k, int n, int64_t bytes, double work_s);

/* The outcome of one input, in the order of the inputs. */
struct vfm_stage_written {
	int64_t inputs;       /* its number, from 1 */
	uint64_t hash;        /* vfm_stage_link.hash after it */
	int64_t bytes, lines; /* of its outputs */
};
/* Returns whether the output must be flushed now. */
bool vfm_stage_link_wrote(struct vfm_stage_link *k, const struct vfm_stage_written *w);
/* Publishes the progress.  The caller must have flushed the output.  Blocks while the next stage's queue is full. */
void vfm_stage_link_publish(
	struct vfm_stage_link *k, const struct vfm_stage_counts *counts, const struct vfm_reasons *reasons);
/* Syncs and closes the output; `done`: all inputs are done. */
int vfm_stage_link_close(struct vfm_stage_link *k, bool done, struct vfm_err *err);

#endif
