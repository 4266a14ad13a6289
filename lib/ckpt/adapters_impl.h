/* adapters_impl.h - shared by the readers of adapters (adapters.h). */
#ifndef VFM_CKPT_ADAPTERS_IMPL_H
#define VFM_CKPT_ADAPTERS_IMPL_H

#include <regex.h>

#include "ckpt/ckpt_impl.h"

/* ---- differences (adapters_sum.c) ---- */

/* A matrix [rows, cols]: B A, or the tensor a if b is NULL.  Dimensions of a after the first are flattened. */
struct ckpt_factor {
	const struct vfm_ckpt_tensor *a, *b; /* [.., cols], [rows, rank] */
	int64_t rows, cols, rank, a_row;     /* A is rows [a_row, a_row + rank) of a */
};

enum ckpt_product { CKPT_SINGLE /* f[0] */, CKPT_HADAMARD, CKPT_KRONECKER };

/* What a file adds to a weight W [rows, cols] of the base model:
 *
 *	share * scale * P              P is the product of f[0] and f[1]
 *	share * (W' - W)               with a magnitude m (DoRA):  W' = m (W + scale * P) / |W + scale * P|
 *
 * The norm and m are those of each row, or of each input channel: `inner` columns of all rows. */
struct ckpt_term {
	struct vfm_ckpt *c; /* has the tensors */
	const char *layer;  /* for messages */
	enum ckpt_product product;
	struct ckpt_factor f[2];
	int64_t rows, cols;
	double scale, share;                     /* alpha / rank; of the file */
	const struct vfm_ckpt_tensor *magnitude; /* NULL: none */
	int64_t inner;                           /* 0: a magnitude for each row */
	float *gain;                             /* m / norm; NULL: not computed yet */
	const char *gain_part;                   /* of the base model: "model" or "ema" */
};

/* Elements [at, at + n) of a tensor of the model are those from `from` on of the weight of a term, flattened. */
struct ckpt_addition {
	const char *tensor; /* our name */
	struct ckpt_term *term;
	int64_t at, n, from;
	size_t order; /* number in the order of additions */
};

struct ckpt_adapters {
	struct vfm_ckpt **file; /* [n_files] */
	int n_files;
	struct ckpt_addition *v; /* sorted by tensor, then order */
	size_t n, cap;
	struct ckpt_term **term; /* [n_terms] of the arena */
	size_t n_terms, cap_terms;
	struct ckpt_trained { /* a parameter of the model that was trained together with the adapters */
		const char *name;
		struct vfm_ckpt *c;
		const struct vfm_ckpt_tensor *t;
	} * trained;
	size_t n_trained, cap_trained;
	struct vfm_arena arena; /* names, terms */
	const struct ckpt_term *loaded;
	float *m[2][2]; /* a and b of the factors of `loaded`, in f32; NULL: none */
};

/* Compares two struct ckpt_addition by tensor, for bsearch, and by tensor and order, for qsort. */
int ckpt_addition_cmp(const void *a, const void *b);
int ckpt_addition_order(const void *a, const void *b);
/* Adds the additions from `first` on, all those of its tensor, to w, which holds a slice of t in f32. */
int ckpt_sum_additions(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	const struct ckpt_addition *first, float *w, struct vfm_err *err);

/* ---- PEFT's rules of the scale (adapters_peft.c) ---- */

/* `= {0}`: alpha is the rank, unless a tensor gives it. */
struct ckpt_lora_rules {
	char *where; /* names the file in messages; NULL: no rules */
	double alpha;
	int64_t rank;   /* 0: not given */
	bool root_rank; /* alpha / sqrt(rank) */
	bool dora;
	const char *type; /* of PEFT: "LORA", "LOHA" or "LOKR" */
	struct ckpt_lora_pattern {
		regex_t re;
		const char *text; /* of the JSON object */
		double value;
		bool used;
	} * alphas, *ranks; /* the first match applies */
	size_t n_alphas, n_ranks;
	json_t *config;
};
/* Reads the keys of a LoraConfig, LoHaConfig or LoKrConfig.  Takes ownership of `config`.  VFM_EUSAGE: a key or
 * value is not supported. */
int ckpt_lora_rules_read(struct ckpt_lora_rules *r, json_t *config, const char *where, struct vfm_err *err);
/* Reads rules like ckpt_lora_rules_read, from the metadata that diffusers writes: {"transformer.r": 16, ...}.  Uses the
 * keys of the section `prefix`, else those of "transformer.", else those without a section.  No-op without any.
 * VFM_EUSAGE: *r already has rules. */
int ckpt_lora_metadata(struct ckpt_lora_rules *r, const struct vfm_ckpt *from, const char *prefix, struct vfm_err *err);
/* Sets *scale to alpha / rank, or alpha / sqrt(rank), of a layer.  kind: its name in ckpt_adapter_kinds; rank: 0 if no
 * matrix has one; alpha: that of a tensor, or 0.  VFM_EUSAGE: the rules are of another kind, or have another rank or
 * another alpha. */
int ckpt_lora_scale(struct ckpt_lora_rules *r, const char *kind, const char *layer, int64_t rank, double alpha,
	double *scale, struct vfm_err *err);
/* Warns about each pattern that matched no layer. */
void ckpt_lora_rules_warn(const struct ckpt_lora_rules *r);
void ckpt_lora_rules_release(struct ckpt_lora_rules *r);

/* ---- the forms of tensors (adapters_form.c) ---- */

enum ckpt_form {
	LORA_A,
	LORA_B,
	LORA_BIAS,
	HADA_W1_A,
	HADA_W1_B,
	HADA_W2_A,
	HADA_W2_B,
	LOKR_W1,
	LOKR_W1_A,
	LOKR_W1_B,
	LOKR_W2,
	LOKR_W2_A,
	LOKR_W2_B,
	ALPHA,
	MAGNITUDE,  /* PEFT's: of each output */
	DORA_SCALE, /* LyCORIS's: of each output, or of each input channel */
	DIFF,
	DIFF_BIAS,
	DIFF_MODULATION,
	N_FORMS
};
/* Returns the form of a tensor and the length of its layer's name, or N_FORMS. */
enum ckpt_form ckpt_form_of(const char *name, size_t *len);

/* The tensors of a layer. */
struct adapter_layer {
	const char *name;
	const struct vfm_ckpt_tensor *t[N_FORMS];
};

/* A product that the forms of a layer make. */
struct ckpt_adapter_kind {
	const char *name;
	enum ckpt_product product;
	struct {
		enum ckpt_form a, b, whole; /* B A, or whole; N_FORMS: not of this kind */
	} f[2];                             /* a == b: no second factor */
};
enum { CKPT_ADAPTER_KINDS = 3 };
extern const struct ckpt_adapter_kind ckpt_adapter_kinds[CKPT_ADAPTER_KINDS];

/* Returns whether the layer has a tensor of the kind. */
bool ckpt_kind_in(const struct ckpt_adapter_kind *k, const struct adapter_layer *l);
/* Sets the factors of *d to the tensors of the layer, and *rank to that of its matrices (0: all are whole).  Returns
 * false after adding the tensors at fault to `halves` or `shapes`. */
bool ckpt_kind_factors(const struct ckpt_adapter_kind *k, const struct adapter_layer *l, struct ckpt_term *d,
	int64_t *rank, struct ckpt_faults *halves, struct ckpt_faults *shapes);
/* Returns whether the product fits a weight of this shape, and sets rows and cols of *d; if not, adds it to `shapes`.
 * Sets *blocks to the number of blocks of outputs, above 1 only for LoRA and own names (spec/model/tuning.h). */
bool ckpt_kind_fits(const struct ckpt_adapter_kind *k, struct ckpt_term *d, const struct vfm_foreign_tensor *w,
	bool own, int64_t *blocks, struct ckpt_faults *shapes);
/* Sets the magnitude of *d, if the layer has one; returns false after adding one of another shape to `shapes`. */
bool ckpt_term_magnitude(const struct adapter_layer *l, struct ckpt_term *d, const struct vfm_foreign_tensor *w,
	struct ckpt_faults *shapes);

/* ---- the tensors of a file (adapters_find.c) ---- */

struct ckpt_attaching {
	struct vfm_ckpt *c, *from;
	struct ckpt_adapters *s;
	const char *path, *part;
	double scale;
	bool skip_missing;
	struct ckpt_lora_rules rules;
	const char *layout; /* set: of the names; "vfm": ours */
};
/* Lists the additions of all tensors of x->from, in their order.  VFM_EUSAGE: a tensor cannot be used; the message
 * names all such tensors. */
int ckpt_adapters_find(struct ckpt_attaching *x, struct vfm_err *err);
/* Opens the file of *x, which x->s owns then, and lists its additions (adapters.c). */
int ckpt_adapters_list(struct ckpt_attaching *x, struct vfm_err *err);

#endif
