/* foreign.h - how other programs store the weights of an architecture: names, shapes and order of tensors, and
 * config.json.  The tables are data; arch_NAME.c holds those of NAME.  Local calls; no files, no devices.
 *
 * Each row says that our tensors, concatenated, equal their tensors, concatenated:
 *
 *	{"blocks.%d.attn.qkv", "3D,D", .linear = true, .theirs = {"attn1.to_q|attn1.to_k|attn1.to_v", ...}}
 *
 * A shape is a list of dimensions; each is a number, a letter, or a number times a letter:
 *
 *	D model.hidden   F features of a token   M model.ffn   E model.text_dim   T features of the time, 256
 *	C model.channels   X channels of the input: latents, condition and masks   P features of an input token
 *	I model.image_dim   L model.image_pos   t h w model.patch   H features of a head   R model.adaln_lora
 *	Z model.text2_dim   N model.refiner_layers   K model.text_proj   Y features of a row that cross-attention reads
 *	S model.single_layers   G model.guidance_dim
 */
#ifndef VFM_SPEC_MODEL_FOREIGN_H
#define VFM_SPEC_MODEL_FOREIGN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "spec/model/model.h"
#include "spec/model/shard.h"

enum { VFM_FOREIGN_LAYOUTS = 3 };

struct vfm_foreign_row {
	const char *ours; /* names, separated by '|'; "blocks.%d." makes one row for each block */
	/* of each of our tensors; if they differ a list, separated by '|', which `theirs` concatenates */
	const char *shape;
	bool linear;  /* a layer: each name gets ".weight" of this shape, and ".bias" of its first dimension */
	bool no_bias; /* of a layer: it has no ".bias" */
	/* The names in each layout, "%d" for the block.  NULL: no known model of this layout has the row. */
	const char *theirs[VFM_FOREIGN_LAYOUTS];
	const char *form; /* shape of each of their tensors; NULL: ours, divided equally along dimension 0 */
	/* Row (c,t,h,w) of ours is row (t,h,w,c) of theirs. */
	bool channels_last;
	char needs; /* the row exists if the dimension of this letter is not 0; 0: always */
	/* with %d: the letter of the number of these blocks; 0: model.layers, without the single-stream blocks.
	 * Those of 'S' are our last blocks, and are numbered from 0 in theirs. */
	char count;
	bool columns; /* their tensor concatenates ours along dimension 1; else along 0 */
	/* The layouts, as bits, in which the halves of their rows are swapped. */
	unsigned swapped;
	/* With `needs`: a text encoder can compute this layer, so that a configuration may leave it out of a file. */
	bool optional;
	/* In layouts with .by_head, their tensor interleaves n projections by head: those of head 0, of head 1, ... */
	int per_head;
	/* RoPE rotates the first n of `parts` equal parts of the rows.  In each head, theirs have the first elements of
	 * all rotated pairs before the second elements; ours alternate. */
	int rope_halves, parts;
};

enum vfm_foreign_type {
	VFM_FOREIGN_INT,       /* an integer at `off` of struct vfm_model_spec; null is 0 */
	VFM_FOREIGN_COUNT,     /* the same, where 0 is 0 */
	VFM_FOREIGN_DOUBLE,    /* model.layers without the single-stream blocks */
	VFM_FOREIGN_INT3,      /* an array of three */
	VFM_FOREIGN_NUM,       /* a number */
	VFM_FOREIGN_NUM3,      /* an array of three */
	VFM_FOREIGN_HEAD_DIM,  /* model.hidden / model.heads */
	VFM_FOREIGN_INPUTS,    /* channels of the input, less `off` of them */
	VFM_FOREIGN_FEATURES,  /* of a token; with fixed_patch */
	VFM_FOREIGN_MLP_RATIO, /* model.ffn / model.hidden */
	VFM_FOREIGN_CONTEXT,   /* features of a row that cross-attention reads */
	VFM_FOREIGN_IMAGE,     /* model.hidden, or null without image rows; the reader takes it from the shapes */
	VFM_FOREIGN_FLAG,      /* whether the integer at `off` is not 0; the reader takes that from the shapes */
	VFM_FOREIGN_ONE_OF,    /* a JSON array of the supported values; the first is written */
	VFM_FOREIGN_ANY,       /* no effect on the weights; `values` is written */
};

struct vfm_foreign_key { /* of config.json */
	const char *key;
	enum vfm_foreign_type type;
	size_t off;
	const char *values; /* JSON text */
	/* Several entries may have the same key: the first one is read.  An entry whose dimension of this letter is not
	 * 0 is written instead of the entries before it. */
	char needs;
};

struct vfm_foreign_layout {
	const char *name;       /* "diffusers" */
	const char *signs;      /* tensors that identify this layout, separated by '|' */
	const char *class_name; /* NULL: its files have no config.json */
	/* Patterns (io/key.h) of tensors that are not the network's weights, which are skipped; NULL: none. */
	const char *ignored;
	bool by_head;
	bool import_only;
	const struct vfm_foreign_key *keys; /* the last has key NULL */
};

struct vfm_foreign {
	int n_layouts;
	struct vfm_foreign_layout layout[VFM_FOREIGN_LAYOUTS];
	const struct vfm_foreign_row *rows; /* the last has ours NULL */
	/* Properties of every published model that its files do not contain.  Either head_dim or heads is 0. */
	int64_t head_dim, heads, text_len, patch[3];
	int64_t image_len;     /* 0: the default */
	double rope_theta;     /* unless config.json gives another; 0: the default */
	bool text_pad;         /* texts are padded to text_len */
	bool fixed_patch;      /* the layouts can express only this patch */
	const char *objective; /* diffusion.kind of the published weights */
	/* The module of kohya's scripts (musubi-tuner) that trains adapters of it; NULL: none. */
	const char *lora_module;
};

/* ---- a model in a layout ---- */

struct vfm_foreign_tensor {
	const char *name;
	int ndim;
	int64_t shape[VFM_NDIM_MAX], numel;
};
struct vfm_foreign_copy { /* elements [a, a + n) of our tensor, flattened, are elements [b, b + n) of theirs */
	int ours, theirs; /* indices */
	int64_t a, b, n;
};
struct vfm_foreign_map {
	struct vfm_foreign_tensor *ours, *theirs;
	int n_ours, n_theirs;
	struct vfm_foreign_copy *copy; /* every element of both sides occurs once */
	size_t n_copies;
	struct vfm_arena arena;
};

/* Lists the tensors of the model m in a layout of its architecture.  m must have passed vfm_model_check. */
void vfm_foreign_expand(struct vfm_foreign_map *map, const struct vfm_model_spec *m, int layout);
void vfm_foreign_map_release(struct vfm_foreign_map *map);
/* Sorts the copies by (theirs, b).  Returns an array [n_theirs + 1] with the index of the first copy of each of their
 * tensors; the caller frees it. */
size_t *vfm_foreign_order_copies(struct vfm_foreign_map *map);

/* Returns whether a tensor of the layout is of an optional row that m is without. */
bool vfm_foreign_left_out(const struct vfm_model_spec *m, int layout, const char *name);

/* Finds the layout `name` of m's architecture.  VFM_EUSAGE: there is no such layout, or it cannot express a key of the
 * section "model", which the message names. */
int vfm_foreign_find(const struct vfm_model_spec *m, const char *name, int *layout, struct vfm_err *err);

/* Sets the dimensions that config.json gives and leaves the others of *m unchanged.  VFM_EUSAGE: a key is unknown or
 * has an unsupported value; the message names it after `where`. */
int vfm_foreign_read_config(struct vfm_model_spec *m, const struct vfm_foreign *f, int layout, const json_t *config,
	const char *where, struct vfm_err *err);
/* Compares the keys that the shapes determine (VFM_FOREIGN_FLAG and COUNT, and integers with `needs`) with *m, which
 * has passed vfm_foreign_finish.  VFM_EUSAGE: one differs; the message names it after `where`. */
int vfm_foreign_check_config(
	const struct vfm_model_spec *m, int layout, const json_t *config, const char *where, struct vfm_err *err);
json_t *vfm_foreign_write_config(const struct vfm_model_spec *m, int layout); /* the caller owns it */

/* Initialises *m for an architecture: dimensions are 0, everything else is as in all its published models. */
void vfm_foreign_begin(struct vfm_model_spec *m, const struct vfm_arch *a);
/* Infers dimensions of *m that are still 0 from the shape of a tensor, if it is one of row r in the layout.  Raises
 * m->layers to the number of its block + 1. */
void vfm_foreign_infer(struct vfm_model_spec *m, const struct vfm_foreign_row *r, int layout, const char *name,
	int ndim, const int64_t *shape);
/* Fills what is still 0 in *m from the properties of all published models, and checks it.  VFM_EUSAGE: a dimension is
 * not known. */
int vfm_foreign_finish(struct vfm_model_spec *m, const struct vfm_foreign *f, struct vfm_err *err);

/* Sets the keys that shapes do not determine from the section "model" in the metadata of our export.  Fails as
 * vfm_model_read. */
int vfm_foreign_read_meta(struct vfm_model_spec *m, const json_t *model, const char *where, struct vfm_err *err);

#endif
