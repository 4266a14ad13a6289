/* config.h - the configuration of a run: one table of keys gives the parser, the
 * defaults that are printed, and the list in vfm-config(5).
 */
#ifndef VFM_TRAIN_CONFIG_H
#define VFM_TRAIN_CONFIG_H

#include "base/json.h"
#include "grad/tape.h"
#include "model/diffusion.h"
#include "spec/model.h"
#include "spec/parallel.h"

enum vfm_lr_schedule { VFM_SCHEDULE_CONSTANT, VFM_SCHEDULE_COSINE, VFM_SCHEDULE_LINEAR };

enum vfm_fp8_kind { VFM_FP8_NONE, VFM_FP8_CURRENT, VFM_FP8_DELAYED };
enum vfm_master_kind { VFM_MASTER_F32, VFM_MASTER_SPLIT };
enum vfm_offload_kind { VFM_OFFLOAD_NONE, VFM_OFFLOAD_OPTIMIZER, VFM_OFFLOAD_ACTIVATIONS, VFM_OFFLOAD_BOTH }; /* bits */

struct vfm_train_config {
	int64_t steps;     /* 0: as many as the manifest has */
	double lr, min_lr; /* min_lr: where cosine and linear end */
	int64_t warmup_steps;
	int schedule; /* enum vfm_lr_schedule */
	double beta1, beta2, eps, weight_decay;
	double clip_norm;         /* 0: no clipping */
	double ema_decay;         /* 0: no EMA */
	int dtype;                /* enum vfm_dtype: f32 or bf16 */
	int fp8;                  /* enum vfm_fp8_kind */
	int64_t fp8_history;      /* steps that delayed scaling goes by */
	int master;               /* enum vfm_master_kind */
	int moments;              /* enum vfm_dtype of AdamW's first moments: f32 or bf16 */
	int residual;             /* enum vfm_dtype of the residual stream: f32 or bf16 */
	int recompute;            /* enum vfm_recompute */
	int64_t recompute_blocks; /* of the model's, spread evenly; 0: all */
	bool deterministic;       /* nothing is chosen by timing: see vfm_plugin_opts */
	int offload;              /* enum vfm_offload_kind */
	int graphs;               /* whether a pack is put on the device as one graph, where that can be */
	uint64_t seed;
};

struct vfm_config {
	struct vfm_model_spec model;
	struct vfm_diffusion diffusion;
	struct vfm_parallel parallel;
	struct vfm_train_config train;
	struct {
		int64_t threads, prefetch;
	} data;
	struct {
		int64_t every;      /* steps between checkpoints; 0: only at the end */
		int64_t keep;       /* newest that stay; 0: all */
		int64_t keep_every; /* multiples of so many steps stay for good; 0: none */
	} ckpt;
};

void vfm_config_defaults(struct vfm_config *c);
/* Later calls override earlier ones; each checks the keys it sets.  "model.preset" in a file sets
 * the whole model first. */
int vfm_config_json(struct vfm_config *c, const json_t *obj, struct vfm_err *err);
/* The same for the configuration in a checkpoint, which may have keys that were renamed since. */
int vfm_config_saved(struct vfm_config *c, const json_t *obj, struct vfm_err *err);
int vfm_config_file(struct vfm_config *c, const char *path, struct vfm_err *err);
int vfm_config_set(struct vfm_config *c, const char *assignment, struct vfm_err *err); /* "model.layers=4" */
int vfm_config_check(struct vfm_config *c, struct vfm_err *err);
json_t *vfm_config_to_json(const struct vfm_config *c); /* all keys, resolved; the caller owns it */

/* One line a key, "train.lr  number, default 0.0001: …": for vfm-train --help-config and the man page. */
void vfm_config_describe(struct vfm_buf *out);

/* Learning rate of step 0, 1, …  of `steps`. */
double vfm_lr_at(const struct vfm_train_config *t, int64_t step, int64_t steps);

#endif
