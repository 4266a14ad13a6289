/* config.h - the configuration of a run: one table of keys for the parser, printed defaults, and vfm-config(5).
 */
#ifndef VFM_TRAIN_JOB_CONFIG_H
#define VFM_TRAIN_JOB_CONFIG_H

#include "data/plan/phases.h"
#include "io/json.h"
#include "net/diffusion/diffusion.h"
#include "spec/layout/parallel.h"
#include "spec/model/model.h"
#include "spec/model/tuning.h"

enum vfm_lr_schedule { VFM_SCHEDULE_CONSTANT, VFM_SCHEDULE_COSINE, VFM_SCHEDULE_LINEAR };

enum vfm_fp8_kind { VFM_FP8_NONE, VFM_FP8_CURRENT, VFM_FP8_DELAYED };
enum vfm_master_kind { VFM_MASTER_F32, VFM_MASTER_SPLIT };
enum { VFM_RESIDUAL_AUTO = -1 }; /* vfm_config_check replaces it by train.dtype */
enum vfm_graphs { VFM_GRAPHS_OFF, VFM_GRAPHS_ON, VFM_GRAPHS_AUTO /* packs whose shape recurs */ };
enum vfm_offload_kind { VFM_OFFLOAD_NONE, VFM_OFFLOAD_OPTIMIZER, VFM_OFFLOAD_ACTIVATIONS, VFM_OFFLOAD_BOTH }; /* bits */

struct vfm_train_config {
	int64_t steps;     /* 0: all steps of the plan */
	double lr, min_lr; /* min_lr: final value of cosine and linear */
	int64_t warmup_steps;
	int schedule; /* enum vfm_lr_schedule */
	double beta1, beta2, eps, weight_decay;
	double clip_norm;         /* 0: no clipping */
	double ema_decay;         /* 0: no EMA */
	int dtype;                /* enum vfm_dtype: f32 or bf16 */
	int fp8;                  /* enum vfm_fp8_kind */
	int64_t fp8_history;      /* amax history length of delayed scaling, in steps */
	int master;               /* enum vfm_master_kind */
	int moments;              /* enum vfm_dtype: f32; bf16 (first moments); u8 (both, device/ops/dynamic8.h) */
	int residual;             /* enum vfm_dtype of the residual stream: f32 or bf16; or VFM_RESIDUAL_AUTO */
	int recompute;            /* enum vfm_recompute */
	int64_t recompute_blocks; /* blocks that recompute, evenly spaced; 0: all */
	double memory_gib;        /* device memory that recompute=auto may fill; 0: most of its capacity */
	/* pinned host memory for offloaded weights, and for activations that recompute=auto offloads; 0: most of this
	 * rank's share */
	double host_gib;
	int64_t skip_nonfinite;  /* steps that the run may skip (train/run/skipped.h) */
	bool deterministic;      /* disables selection by timing: see vfm_plugin_opts */
	int offload;             /* enum vfm_offload_kind */
	int64_t offload_weights; /* blocks whose frozen weights are in host memory, spread evenly; -1: auto */
	int graphs;              /* enum vfm_graphs: launch packs as device graphs */
	int overlap_update;      /* enum vfm_overlap: updates that overlap the next forward */
	uint64_t seed;
};

enum { VFM_EVAL_TIMES_MAX = 64 };

enum vfm_idle_place { VFM_IDLE_HOST, VFM_IDLE_DEVICE };

struct vfm_config {
	struct vfm_model_spec model;
	struct vfm_diffusion diffusion;
	struct vfm_parallel parallel;
	struct vfm_tuning tuning;
	struct vfm_train_config train;
	struct {
		int64_t threads, prefetch;
		double max_damaged;
		/* weights for the choice of a sample's caption; empty: all are equally likely */
		struct vfm_name_weights captions;
	} data;
	struct {                    /* of a run that trains two networks (train/run/experts.h) */
		double boundary;    /* the smallest t of the high-noise network; 0: not given */
		int64_t turn;       /* steps of one network in a row */
		int64_t turn_packs; /* packs, instead of steps; 0: turn */
		int idle;           /* enum vfm_idle_place: where the state of the other one waits */
		double low_lr;      /* train.lr of the low-noise network; 0: the same */
	} experts;
	struct {
		int64_t every;          /* steps between evaluations of held-out data; 0: only at the end */
		int64_t times;          /* noise levels of an evaluation, at most VFM_EVAL_TIMES_MAX */
		int64_t samples;        /* of the held-out data that are generated (preview.h); 0: none */
		int64_t sample_every;   /* steps between samples; 0: `every` */
		int64_t sample_steps;   /* of the sampler */
		double sample_cfg;      /* 1: no guidance */
		double sample_guidance; /* that a distilled network reads */
	} eval;
	struct {
		int64_t every;      /* steps between checkpoints; 0: only at the end */
		int64_t keep;       /* number of newest checkpoints kept; 0: all */
		int64_t keep_every; /* checkpoints at multiples of this step count are never deleted; 0: none */
	} ckpt;
};

void vfm_config_defaults(struct vfm_config *c);
/* Sets the keys of obj and validates them; later calls override earlier ones.  "model.preset" in a file is applied
 * first and sets the whole section. */
int vfm_config_json(struct vfm_config *c, const json_t *obj, struct vfm_err *err);
/* Sets *c to the configuration recorded in a checkpoint or a run, with defaults for other keys, and checks it. */
int vfm_config_saved(struct vfm_config *c, const json_t *obj, struct vfm_err *err);
/* Loads a file for vfm_config_phase (io/document.h), which the caller owns.  It may run a program: load a file once,
 * before the ranks start. */
json_t *vfm_config_load(const char *path, struct vfm_err *err);
/* Like vfm_config_json, for phase k of the list.  The document may also have "stages", an object of configurations by
 * the names of phases; that of the phase is applied last.  With an empty list, "stages" is not allowed. */
int vfm_config_phase(
	struct vfm_config *c, const json_t *document, const struct vfm_phases *l, int k, struct vfm_err *err);
int vfm_config_set(struct vfm_config *c, const char *assignment, struct vfm_err *err); /* "model.layers=4" */
int vfm_config_check(struct vfm_config *c, struct vfm_err *err);
json_t *vfm_config_to_json(const struct vfm_config *c); /* all keys, resolved; the caller owns the result */

/* Appends one line per key (name, default, help) for vfm-train --help-config and the manual page. */
void vfm_config_describe(struct vfm_buf *out);

/* Returns the learning rate of step `step` (0 .. steps - 1). */
double vfm_lr_at(const struct vfm_train_config *t, int64_t step, int64_t steps);

#endif
