/* sample_net.h - the networks of vfm-sample: checkpoints, weights, and the distribution of the work over ranks.
 *
 *	TRY(vfm_job_agree(&x->job, vfm_sample_net_open(&n, &opts, &sampler, x->job.world, err), err)); // local
 *	TRY(vfm_sample_net_load(&n, x, err));                                                          // collective
 *	vfm_sample_net_release(&n);                                                // before the context is closed
 *
 * dp groups of tp x cp ranks sample different prompts.  With split_cfg, two of these are one group: the first computes
 * the texts, the second the negative texts.
 */
#ifndef VFM_TRAIN_SAMPLE_SAMPLE_NET_H
#define VFM_TRAIN_SAMPLE_SAMPLE_NET_H

#include "ckpt/ckpt.h"
#include "io/opt.h"
#include "net/diffusion/sampler.h"
#include "train/job/context.h"
#include "train/step/inference.h"

struct vfm_sample_net_opts {
	const char *ckpt;       /* a checkpoint, or a run, whose newest checkpoint is used */
	const char *low_noise;  /* the checkpoint for noise levels below sampler.boundary; NULL: none */
	const char *part;       /* "ema" or "model"; a checkpoint without averages has only "model" */
	const char *dtype;      /* "fp32" or "bf16" */
	int stored;             /* enum vfm_frozen_dtype of the weights of blocks */
	const char *offload;    /* blocks with weights in host memory, or "auto" (train/step/inference.h) */
	struct vfm_strlist set; /* parallel.KEY=VALUE */
	/* PATH or PATH:SCALE: adapters added to the weights of each network (ckpt/adapters.h) */
	struct vfm_strlist lora[2];
	bool skip_missing; /* leaves out adapters of layers that the model lacks */
	bool split_cfg;
	bool force; /* accepts, with a warning, two networks whose ranges of t do not meet at the boundary */
};

struct vfm_sample_weights {
	struct vfm_ckpt *ckpt; /* open until the weights are loaded */
	struct vfm_ckpt *base; /* the base model, if the checkpoint holds adapters; else NULL */
	const char *own;       /* the part of ckpt */
	const char *part;      /* of base, else of ckpt */
	struct vfm_params ps;
	struct vfm_model *model;
};

/* Collective.  Loads the network that samples of a run need besides the one that it trains, as the other expert of Wan
 * 2.2: from a checkpoint of the model of c, which computes t[0] to t[1].  loads false: only checks it, and the hash of
 * the base model of adapters.  Release *w in any case.  VFM_EUSAGE: it has another model or kind of diffusion, or was
 * trained for other t. */
int vfm_sample_weights_load(struct vfm_sample_weights *w, const char *path, const struct vfm_config *c,
	const double t[2], bool loads, struct vfm_context *x, struct vfm_err *err);
void vfm_sample_weights_release(struct vfm_sample_weights *w); /* accepts `{0}` */

struct vfm_sample_net {
	const struct vfm_sample_net_opts *o;
	struct vfm_config c; /* of the checkpoint; parallel: of this run */
	struct vfm_inference_opts inference;
	struct vfm_sample_weights of[2]; /* the network; that of low_noise, or zeros */
	int64_t groups, group;           /* number of groups, and the group of this rank */
	bool leader;                     /* the first rank of its group */
	struct vfm_comm *together;       /* the ranks of the group, host memory */
	struct vfm_comm *cfg_pair;       /* of struct vfm_sample_job; NULL without split_cfg */
	struct vfm_comm *own_together;   /* NULL: together belongs to the mesh */
};

/* Local.  If `run` trains two networks (train/run/experts.h), sets *high and *low to their folders, which the caller
 * frees, and *boundary, and returns 1; else 0.  VFM_EUSAGE: a damaged config.json. */
int vfm_sample_net_pair(const char *run, char **high, char **low, double *boundary, struct vfm_err *err);

/* Local.  Opens the checkpoints and sets up configuration and groups.  VFM_EUSAGE: a checkpoint does not describe its
 * model; two checkpoints differ in model, kind of diffusion or encoders, or were trained for other t than they compute;
 * adapters do not fit the model; the sampler does not fit the diffusion; or the layout does not fit the ranks of
 * world. */
int vfm_sample_net_open(struct vfm_sample_net *n, const struct vfm_sample_net_opts *o, const struct vfm_sampler *s,
	const struct vfm_comm *world, struct vfm_err *err);
/* Collective.  Opens the context and loads the weights; all networks stay in memory.  Closes the checkpoints.  tokens,
 * samples: at most in a batch (vfm_sampling_tokens); beside: device bytes of the decoder, which overlaps no batch. */
int vfm_sample_net_load(struct vfm_sample_net *n, int64_t tokens, int64_t samples, double beside, struct vfm_context *x,
	struct vfm_err *err);
/* Returns the job of these networks; its pointers are valid as long as n and x. */
struct vfm_sample_job vfm_sample_net_job(const struct vfm_sample_net *n, const struct vfm_context *x);
void vfm_sample_net_release(struct vfm_sample_net *n);

#endif
