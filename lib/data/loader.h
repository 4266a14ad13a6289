/* loader.h - the packs of a manifest as host memory, read ahead in the background.
 *
 * The order of the batches is that of the manifest (step, then pack), restricted to the
 * packs that `rank` of `world` owns; it does not depend on threads or prefetch.  A loader
 * has one consumer: next and release are called from one thread.  All calls are local.
 */
#ifndef VFM_DATA_LOADER_H
#define VFM_DATA_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/manifest.h"

/* One pack.  All arrays are 64-byte aligned and belong to the loader; they are valid until
 * vfm_batch_release.  Tokens of a sample are contiguous, samples in the order of the manifest. */
struct vfm_batch {
	int64_t step, pack; /* pack within the step */
	int32_t n_samples;
	int64_t tokens;      /* == cu_seqlens[n_samples] */
	int64_t text_tokens; /* == cu_text[n_samples]; a sample without text has none */
	int64_t step_tokens; /* the sum of `tokens` over all packs of the step, of all ranks */
	int32_t patch_dim;   /* channels * pt * ph * pw */
	int32_t text_dim;
	uint64_t *id;        /* [n_samples] sample id: the key of its randomness */
	int32_t (*grid)[3];  /* [n_samples] size in patches: t, h, w */
	int32_t *cu_seqlens; /* [n_samples + 1] */
	int32_t *cu_text;    /* [n_samples + 1] */
	/* [tokens, patch_dim] patchified latents (patch.h): token order (t,h,w), feature order (c,pt,ph,pw) */
	float *x0;
	float *text;       /* [text_tokens, text_dim] */
	int32_t *seg;      /* [tokens] sample of the token */
	int32_t *idx;      /* [tokens] token within its sample */
	int16_t (*pos)[3]; /* [tokens] t, h, w within its sample */
	/* private */
	void *mem;
	size_t mem_size;
	int32_t slot;
};

struct vfm_loader_opts {
	int64_t first_step;  /* resume: the first step that is delivered */
	int32_t rank, world; /* pack p of a step belongs to p % world == rank; world 0 means 1 */
	int32_t prefetch;    /* packs read ahead; 0: 4 */
	int32_t threads;     /* reading threads; 0: 2 */
	/* do not compare the sha256 of the indexes with the manifest at open (it reads them whole) */
	bool skip_hash;
};

struct vfm_loader_stats {
	int64_t batches, samples, tokens; /* delivered */
	int64_t bytes;                    /* of latents and text, as float32 */
	double wait_s;                    /* that next() had to wait for data, in all */
	double last_wait_s;               /* in the last call */
};

struct vfm_loader;

/* Opens the indexes of all sets and compares them with the header: records, channels, text_dim, sha256.
 * The manifest must outlive the loader.  NULL on failure. */
struct vfm_loader *vfm_loader_open(
	const struct vfm_manifest *m, const struct vfm_loader_opts *opts, struct vfm_err *err);
void vfm_loader_close(struct vfm_loader *l); /* waits for work under way; frees all batches; NULL is fine */

/* 1: *out is the next batch; 0: the manifest is at its end; negative: this pack cannot be read (a sample that is
 * not in the index, has other tokens than the manifest says, or whose checksum is wrong; the sentence names
 * pack, set, shard and index), and every further call says so again.
 * At most prefetch + 1 batches may be held; VFM_EUSAGE if the oldest of them is still held. */
int vfm_loader_next(struct vfm_loader *l, struct vfm_batch **out, struct vfm_err *err);
void vfm_batch_release(struct vfm_loader *l, struct vfm_batch *b);

/* Packs of a step that this rank gets (0 if world > batch). */
int32_t vfm_loader_packs_per_step(const struct vfm_loader *l);
struct vfm_loader_stats vfm_loader_stats(const struct vfm_loader *l);

#endif
