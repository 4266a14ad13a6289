/* loader.h - reads the packs of a plan into host memory, ahead in the background.
 *
 * The packs of `rank` of `world` come in the order of the plan (step, then pack).  Latents are bf16 or f16 if all
 * latents of the pack are stored so, else f32; with conditions, bf16 or f32.  A loader has one consumer: one thread
 * calls next and release.  All calls are local.  Ranks of a node that need the same packs (tp, cp, pp) form a group:
 * one of them, in turn, reads a pack into shared memory.
 *
 * A damaged sample is replaced by the next sample of the plan with the same number of tokens, on every rank and in
 * every resumed run.  A sample is damaged if its bytes contradict the index, or if its index record is damaged.  A file
 * that cannot be opened or read is a failure of the machine and ends the run.
 */
#ifndef VFM_DATA_LOADER_LOADER_H
#define VFM_DATA_LOADER_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/shared.h"
#include "data/plan/plan.h"
#include "io/key.h"
#include "spec/layout/pack.h"

enum {
	VFM_LOADER_PREFETCH_MAX = 4096,
	VFM_LOADER_EXTRA_DEPTH_MAX = 4096,
	VFM_LOADER_SLOTS_MAX = VFM_LOADER_PREFETCH_MAX + VFM_LOADER_EXTRA_DEPTH_MAX + 1,
	VFM_LOADER_STEPS_SEARCHED = 256, /* for a sample to replace a damaged one, including its own step */
};

/* Ranks of one node that read the same packs. */
struct vfm_loader_group {
	const struct vfm_shared *mem; /* opened by all ranks of the group; outlives the loader */
	uint64_t at;                  /* offset of vfm_loader_group_bytes() that are reserved for this loader */
	int32_t rank, size;           /* size 1: no group */
	/* A rank may use a pack that is this many packs after one that another rank still uses (pp stages). */
	int32_t extra_depth;
	/* Called every 100 ms during a wait for other ranks, from any thread; a negative code ends the wait.  NULL:
	 * none. */
	int (*check)(void *ctx, struct vfm_err *err);
	void *ctx;
};
size_t vfm_loader_group_bytes(void);

struct vfm_loader_opts {
	int64_t first_step;  /* the first step to deliver, for a resumed run */
	int32_t rank, world; /* pack p of a step belongs to p % world == rank; world 0 means 1 */
	/* With a plan that divides packs into parts (header.cp): n_parts is the number of cp ranks that share the parts
	 * of `rank`, and part the number of this one among them.  0: 1.
	 *
	 * - Part p of a step belongs to rank p / n_parts % world, cp rank p % n_parts.  A cp rank gets the pack that
	 *   has this part.
	 * - If n_parts is less than the parts of a pack, other ranks with its parts get a pack without samples.
	 * - header.cp divides n_parts or the reverse, and world x n_parts divides the batch. */
	int32_t n_parts, part;
	/* Divides whole steps instead: step s belongs to s % world == rank.  All ranks get the same number of packs:
	 * beyond the last step, step s is s % steps.  first_step must be 0. */
	bool by_step;
	/* Divides a step between two networks: returns 0 or 1 for a pack, in any thread.  Packs of turn 0 come first.
	 * The packs of a turn are dealt out to the ranks: where a rank gets one less than others, its last one has no
	 * samples.  step_tokens counts the tokens of the turn.  Neither with header.cp nor by_step; NULL: one turn. */
	int (*turn_of)(const void *ctx, int64_t step, int64_t pack);
	const void *turn_ctx;
	int32_t prefetch;                     /* packs read ahead; 0: 4 */
	int32_t threads;                      /* reading threads; 0: 2 */
	const struct vfm_loader_group *group; /* NULL: none; the loader copies it */
	/* Weights of the captions of a sample; NULL: all are equally likely.  The loader copies them. */
	const struct vfm_name_weights *captions;
	uint64_t seed;    /* of the choice of captions */
	int32_t text_len; /* delivers only the first text_len text rows of a sample; 0: all. The first cut is logged */
	bool cond, image; /* deliver conditions, image rows; VFM_EUSAGE if the plan has none */
	/* Delivers second texts of so many features, and of each only the first text2_len rows.  0: none, and all.  The
	 * first cut is logged.  VFM_EUSAGE if those of the plan have other features. */
	int32_t text2_dim, text2_len;
	/* The fraction of samples that may be replaced, of those delivered or, if more, of 1000; 0: none. */
	double max_damaged;
	/* for shards that are not next to their index (data/dataset/shard_cache.h); NULL: none */
	struct vfm_shard_cache *cache;
	/* of the plan (vfm_plan_sha256), borrowed; NULL: unknown.  Used if the modification time of the file
	 * changes. */
	const char *plan_sha256;
	/* do not compare the sha256 of the indexes with the plan at open */
	bool skip_hash;
};

/* The state of a thread that reads packs. */
enum vfm_load_cause {
	VFM_LOAD_FILES,   /* reads shards */
	VFM_LOAD_CHECK,   /* checks what it read: checksums, finite values */
	VFM_LOAD_ARRANGE, /* converts and patchifies */
	VFM_LOAD_LOOKUP,  /* reads plan and indexes; also everything else: memory, positions */
	VFM_LOAD_PEERS,   /* waits for the other ranks of the group to release a slot */
	VFM_LOAD_CAUSES
};
extern const char *const vfm_load_causes[VFM_LOAD_CAUSES]; /* "files" */

struct vfm_loader_stats {
	/* delivered, including those of the other cp ranks (n_parts) */
	int64_t packs, samples, tokens;
	int64_t bytes;      /* of all arrays, as delivered */
	int64_t file_bytes; /* read by this rank from shards, including read-ahead */
	int64_t unlisted;   /* samples without any caption that has a weight; the first one is logged */
	int64_t replaced;   /* damaged samples; the first 1000 are logged, with a cache one per shard */
	double wait_s;      /* total time that vfm_loader_next blocked for data */
	double last_wait_s; /* of the last call */
	/* wait_s by the activity of the reader of the awaited pack */
	double wait_by_s[VFM_LOAD_CAUSES];
};

struct vfm_loader;

/* Opens the indexes of all sets and compares records, encoders, channels, text_dim and sha256 with the header.  The
 * plan must outlive the loader.  Returns NULL on failure.  VFM_EUSAGE also if no set has a caption that opts->captions
 * names. */
struct vfm_loader *vfm_loader_open(struct vfm_plan *m, const struct vfm_loader_opts *opts, struct vfm_err *err);
void vfm_loader_close(struct vfm_loader *l); /* waits for running jobs; frees all packs; accepts NULL */

/* Blocks until the next pack is read.  Returns 1 and sets *out, which the loader owns until vfm_loader_release, or 0 at
 * the end of the plan.  At most prefetch + 1 packs may be held; VFM_EUSAGE if the oldest of them is still held.
 *
 * Returns a negative code if the pack cannot be read; all further calls then return the same error.  The message names
 * pack, set, shard and index.  Reasons:
 *
 * - a sample is not in the index, or its tokens differ from the plan
 * - plan or index changed during use
 * - more samples are damaged than opts->max_damaged
 * - no sample has as many tokens as a damaged one */
int vfm_loader_next(struct vfm_loader *l, struct vfm_pack **out, struct vfm_err *err);
void vfm_loader_release(struct vfm_loader *l, struct vfm_pack *p);

/* Returns the packs per step of this rank, including those without samples; 0 if it gets none.  With turn_of: at
 * most. */
int32_t vfm_loader_packs_per_step(const struct vfm_loader *l);
struct vfm_loader_stats vfm_loader_stats(const struct vfm_loader *l);

#endif
