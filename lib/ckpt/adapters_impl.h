/* adapters_impl.h - shared by the readers of adapters (adapters.h). */
#ifndef VFM_CKPT_ADAPTERS_IMPL_H
#define VFM_CKPT_ADAPTERS_IMPL_H

#include <regex.h>

#include "ckpt/ckpt_impl.h"

/* ---- sums (adapters.c) ---- */

/* Adds scale * D to elements [at, at + n) of a tensor of the model.  D is elements [from, from + n) of B A, or of a if
 * b is NULL, flattened. */
struct ckpt_addition {
	const char *tensor; /* our name */
	struct vfm_ckpt *c;
	const struct vfm_ckpt_tensor *a, *b; /* [.., in], [rows, rank] */
	int64_t at, n, from;
	int64_t in, rank, a_row; /* A is rows [a_row, a_row + rank) of a */
	double scale;
	size_t order; /* number in the order of additions */
};

struct ckpt_adapters {
	struct vfm_ckpt **file; /* [n_files] */
	int n_files;
	struct ckpt_addition *v; /* sorted by tensor, then order */
	size_t n, cap;
	struct ckpt_trained { /* a parameter of the model that was trained together with the adapters */
		const char *name;
		struct vfm_ckpt *c;
		const struct vfm_ckpt_tensor *t;
	} * trained;
	size_t n_trained, cap_trained;
	struct vfm_arena arena; /* names */
	/* the matrices of the last addition, in f32; b NULL: none */
	const struct ckpt_addition *loaded;
	float *a, *b;
};

/* ---- PEFT's rules of the scale (adapters_peft.c) ---- */

/* `= {0}`: alpha is the rank, unless a tensor gives it. */
struct ckpt_lora_rules {
	char *where; /* names the file in messages; NULL: no rules */
	double alpha;
	int64_t rank;   /* 0: not given */
	bool root_rank; /* alpha / sqrt(rank) */
	struct ckpt_lora_pattern {
		regex_t re;
		const char *text; /* of the JSON object */
		double value;
		bool used;
	} * alphas, *ranks; /* the first match applies */
	size_t n_alphas, n_ranks;
	json_t *config;
};
/* Reads the keys of a LoraConfig.  Takes ownership of `config`.  VFM_EUSAGE: a key or value is not supported. */
int ckpt_lora_rules_read(struct ckpt_lora_rules *r, json_t *config, const char *where, struct vfm_err *err);
/* Reads rules like ckpt_lora_rules_read, from the metadata that diffusers writes: {"transformer.r": 16, ...}.  Uses the
 * keys of the section `prefix`, else those of "transformer.", else those without a section.  No-op without any.
 * VFM_EUSAGE: *r already has rules. */
int ckpt_lora_metadata(struct ckpt_lora_rules *r, const struct vfm_ckpt *from, const char *prefix, struct vfm_err *err);
/* Sets *scale to alpha / rank, or alpha / sqrt(rank), of a layer with a matrix of this rank.  alpha: that of a tensor,
 * or 0.  VFM_EUSAGE: the rules have another rank or another alpha. */
int ckpt_lora_scale(
	struct ckpt_lora_rules *r, const char *layer, int64_t rank, double alpha, double *scale, struct vfm_err *err);
/* Warns about each pattern that matched no layer. */
void ckpt_lora_rules_warn(const struct ckpt_lora_rules *r);
void ckpt_lora_rules_release(struct ckpt_lora_rules *r);

/* ---- the tensors of a file (adapters_find.c) ---- */

struct ckpt_attaching {
	struct vfm_ckpt *c, *from;
	struct ckpt_adapters *s;
	const char *path, *part;
	double scale;
	struct ckpt_lora_rules rules;
};
/* Lists the additions of all tensors of x->from, in their order.  VFM_EUSAGE: a tensor cannot be used; the message
 * names all such tensors. */
int ckpt_adapters_find(struct ckpt_attaching *x, struct vfm_err *err);

#endif
