/* bench_sampling.h - measures or predicts the sampling of videos: evaluations of the network by the sampler, with dense
 * random weights and random texts, without encoders and decoder.
 *
 *	struct vfm_bench_sampling b = {.grid = {21, 30, 52}, .samples = 1, .text_len = 512, .evals = 5, .warmup = 2};
 *
 *	vfm_sampler_defaults(&b.sampler);
 *	TRY(vfm_inference_layout(&c, set, n, false, ranks, err));
 *	TRY(vfm_bench_sampling_predict(&b, &c, &machine, ranks, &out, err));
 *	vfm_bench_sampled_release(&out);
 */
#ifndef VFM_TRAIN_PREDICT_BENCH_SAMPLING_H
#define VFM_TRAIN_PREDICT_BENCH_SAMPLING_H

#include "base/stats.h"
#include "device/sim/sim_memory.h"
#include "net/diffusion/sampler.h"
#include "train/job/context.h"
#include "train/step/inference.h"

struct vfm_bench_sampling {
	int32_t grid[3];                     /* grid of each video, in patches t, h, w */
	int64_t samples;                     /* videos that a group of ranks samples together */
	int64_t text_len;                    /* text rows of a video; a negative text is the null text */
	struct vfm_sampler sampler;          /* its steps are those of a video */
	struct vfm_inference_opts inference; /* stored, offload; the call sets the others */
	/* Minimum numbers of evaluations to warm up and to measure, and minimum seconds of the latter.  A prediction
	 * uses none of them. */
	int64_t warmup, evals;
	double min_s;
};

/* An evaluation computes the predictions of all videos that are sampled together, guidance included. */
struct vfm_bench_sampled {
	int64_t n;                /* measured evaluations */
	struct vfm_spread eval_s; /* seconds of an evaluation on the slowest rank */
	double s[VFM_ESTIMATES];  /* of a prediction: the same at each estimate */
	double comm_s, copy_s;    /* stalls of an evaluation (stats.h): means over evaluations and ranks */
	double flops;             /* of an evaluation, over all groups: a guided one has two forwards */
	int64_t tokens;           /* of the videos of an evaluation, over all groups */
	int64_t videos;           /* of an evaluation, over all groups */
	int64_t video_evals;      /* evaluations of a video */
	int64_t mem_peak;         /* of the fullest rank */
	int64_t offloaded;        /* blocks of the first rank with weights in host memory */
	double host_bytes;        /* of these weights */
	/* of a prediction */
	bool fits;                    /* false: mem_peak is what it needs, times are those of a device that has it */
	bool beyond;                  /* the call failed: a rank needs more than 8 times the memory of its device */
	int64_t mem_beside;           /* of that rank: struct vfm_dry_run_rank */
	struct vfm_sim_memory memory; /* of that rank, by owner */
};

/* Local.  Returns VFM_EUSAGE if a count is out of range, or the sampler does not fit the diffusion. */
int vfm_bench_sampling_check(const struct vfm_bench_sampling *b, const struct vfm_config *c, struct vfm_err *err);
/* Collective.  Requires vfm_context_open(x, c), with the layout of vfm_inference_layout.  Every rank receives the
 * result; the caller releases it. */
int vfm_bench_sampling_run(struct vfm_context *x, const struct vfm_config *c, const struct vfm_bench_sampling *b,
	struct vfm_bench_sampled *out, struct vfm_err *err);
/* Predicts the same on simulated ranks (simulate.h).  If a device is too small, simulates once more with more memory.
 * The caller releases *out, also after a failure. */
int vfm_bench_sampling_predict(const struct vfm_bench_sampling *b, const struct vfm_config *c,
	const struct vfm_machine *m, int ranks, struct vfm_bench_sampled *out, struct vfm_err *err);
void vfm_bench_sampled_release(struct vfm_bench_sampled *r);

#endif
