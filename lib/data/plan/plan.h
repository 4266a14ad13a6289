/* plan.h - a plan: the samples of each sequence and the order of sequences, for a whole run (vfm-plan(5)).
 *
 * A plan is divided into *global* steps of `batch` packs each.  It does not depend on ranks: the trainer assigns the
 * packs of a step.  A plan may also set how many context-parallel ranks compute each pack (header.cp).  A step then has
 * `batch` parts, one for each rank.  A pack of cp k takes k parts and has at most k x context tokens.
 *
 * The encodings jsonl and bin have the same content; their first bytes distinguish them.  Every record is checked when
 * it is read.  A damaged, truncated or inconsistent plan gives VFM_EUSAGE and a message that names file and line (or
 * pack).
 *
 * All reading functions are thread-safe and local.  If another process may change the file, see vfm_plan_check_file.
 */
#ifndef VFM_DATA_PLAN_PLAN_H
#define VFM_DATA_PLAN_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "data/plan/mix.h"
#include "data/record/encoder_id.h"
#include "io/hash.h"

#define VFM_PLAN_VERSION     1
#define VFM_PLAN_MAX_SETS    4096
#define VFM_PLAN_MAX_CONTEXT (1 << 24) /* tokens per pack */
#define VFM_PLAN_MAX_BATCH   (1 << 22) /* packs per step */
#define VFM_PLAN_MAX_CP      64        /* ranks per pack */

struct vfm_plan_set {
	const char *name;
	const char *dir_given; /* as written in the file */
	const char *dir;       /* resolved: relative to the plan's folder unless absolute */
	int64_t records;       /* samples in the set's index */
	/* samples that belong to the set; never 0 in a reader; 0 in a writer: all */
	int64_t selected;
	char index_sha256[VFM_SHA256_HEX]; /* of index.vfmi */
	double weight;                     /* requested share of the tokens of the plan */
	double passes;                     /* requested number of passes; 0: the weight determines them */
	struct vfm_mix_weights schedule;   /* the weight by steps, if it changes; else no points */
	struct vfm_encoder_ids forced;     /* identities that --force accepted instead of the header's; else unknown */
};

enum vfm_plan_side { VFM_SIDE_ALL, VFM_SIDE_TRAIN, VFM_SIDE_HELD_OUT };

struct vfm_plan_header {
	int32_t context; /* maximum tokens of a pack; with cp: of a part */
	int32_t batch;   /* packs per step; with cp: parts, a multiple of cp */
	/* 0: all cp ranks of the run compute every pack.  Else the largest cp of a pack, a power of two. */
	int32_t cp;
	int64_t steps;
	uint64_t seed;
	int32_t patch[3]; /* t, h, w */
	int32_t latent_channels;
	int32_t text_dim; /* 0: no sample has text */
	/* the extra arrays of every sample (data/record/extra.h); 0: none */
	int32_t cond_channels, image_len, image_dim;
	int32_t text2_dim; /* of the samples with a second text; 0: none has one */
	int32_t n_sets;
	struct vfm_plan_set *sets;          /* [n_sets] */
	struct vfm_encoder_ids encoder_ids; /* of all sets; unknown if no set names them */
	enum vfm_plan_side side;            /* the side of the samples (split.h); ALL: any sample */
	double held_out;                    /* the held-out fraction; 0 with ALL */
	const json_t *forced; /* an array (data/record/encoder_id.h), whose entries also have "set"; or NULL */
};

struct vfm_plan_sample {
	int32_t set; /* index into header.sets */
	int32_t shard;
	int64_t index; /* within the shard */
	int32_t tokens;
};

struct vfm_plan_pack {
	int64_t step;
	int32_t pack; /* within the step: 0 .. batch-1; with header.cp: its first part, a multiple of its cp */
	/* number of parts, a power of two <= header.cp; 1 without header.cp; 0: the part belongs to the previous pack
	 * and has no samples */
	int32_t cp;
	int32_t n_samples;
	int64_t tokens;                        /* the sum over the samples, <= cp x context */
	double cost;                           /* the cost that the packer balanced, in units of the cost file */
	const struct vfm_plan_sample *samples; /* [n_samples] */
};

/* The packs of one step.  Reused from call to call; `= {0}` before the first. */
struct vfm_plan_step {
	int64_t step;
	int64_t tokens;              /* the sum over all packs of the step: the denominator of the loss */
	int32_t n_packs;             /* == batch, including parts without samples */
	struct vfm_plan_pack *packs; /* [n_packs], owned; valid until the next read or release */
	/* private */
	struct vfm_plan_sample *samples;
	size_t cap_packs, cap_samples;
	/* the start of the next step in the plan with this `serial`, so that sequential reads need no search */
	uint64_t next_off;
	uint64_t serial;
};

struct vfm_plan;

/* Opens a plan; checks the header and the last record, which detects a truncated file.  Returns NULL on failure. */
struct vfm_plan *vfm_plan_open(const char *path, struct vfm_err *err);
/* Returns VFM_EENV if the file has changed since it was opened (vfm_map_check).  Call it after reading.  sha256: that
 * of the opened plan; NULL: unknown, and another modification time is an error. */
int vfm_plan_check_file(struct vfm_plan *m, const char *sha256, struct vfm_err *err);
void vfm_plan_close(struct vfm_plan *m);                                 /* no-op for NULL */
const struct vfm_plan_header *vfm_plan_header(const struct vfm_plan *m); /* owned by m */
const char *vfm_plan_path(const struct vfm_plan *m);

/* Reads step 0 <= step < steps into *out.  Checks that numbers are in range, that packs are complete and in order, and
 * that sums are correct.  The loader compares the samples with the indexes (loader.h). */
int vfm_plan_step(const struct vfm_plan *m, int64_t step, struct vfm_plan_step *out, struct vfm_err *err);
void vfm_plan_step_release(struct vfm_plan_step *s);
/* Returns the pack that contains this part of the step; part < n_packs. */
const struct vfm_plan_pack *vfm_plan_pack_of(const struct vfm_plan_step *s, int64_t part);

/* Reads and checks the whole plan, and computes the sha256 of its content (vfm-plan(5)): context, batch, patch, widths,
 * hashes of the indexes, and the samples of every pack.  Both encodings of a plan have the same hash.  Paths, names,
 * weights and costs do not affect it.  The compute threads share the work (base/par.h). */
/* tick (may be NULL) is called after each block of steps; a negative result ends the call. */
int vfm_plan_sha256(struct vfm_plan *m, char hex[VFM_SHA256_HEX], int (*tick)(void *ctx, struct vfm_err *err),
	void *ctx, struct vfm_err *err);

/* Computes a digest of the file's size, first 64 KiB and last 64 KiB, in constant time.  Ranks compare it to check that
 * they opened the same file. */
void vfm_plan_digest(const struct vfm_plan *m, char hex[VFM_SHA256_HEX]);

/* ---- writing ---- */

/* Writes a stream: new, every pack in the order of (step, pack) without parts that have no samples, end.  The caller
 * owns `f` and writes nothing else to it meanwhile.  The writer uses `dir_given` of the header and ignores `dir` and
 * `steps`.  end gets the number of steps, and fails if the packs have another.
 *
 * end writes the header in front of the packs.  A file without it, because its writer was killed or ran out of space,
 * does not open.  If `f` is not a regular file, or appends, end writes everything.  Until then the plan is in an
 * unlinked temporary file (TMPDIR), as are the records of packs of a binary plan, 32 bytes each. */
enum vfm_plan_format { VFM_PLAN_JSONL, VFM_PLAN_BIN };
struct vfm_plan_writer;
struct vfm_plan_writer *vfm_plan_writer_new(
	FILE *f, enum vfm_plan_format format, const struct vfm_plan_header *h, struct vfm_err *err);
int vfm_plan_writer_pack(struct vfm_plan_writer *w, const struct vfm_plan_pack *p, struct vfm_err *err);
int vfm_plan_writer_end(struct vfm_plan_writer *w, int64_t steps, struct vfm_err *err); /* frees w in any case */
void vfm_plan_writer_abort(struct vfm_plan_writer *w);                                  /* no-op for NULL */

#endif
