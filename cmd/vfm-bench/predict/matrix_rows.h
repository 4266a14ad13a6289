/* matrix_rows.h - the rows of vfm-bench matrix: from lists of options, from JSON Lines, or from a file of published
 * figures. */
#ifndef CMD_MATRIX_ROWS_H
#define CMD_MATRIX_ROWS_H

#include "base/err.h"
#include "io/opt.h"
#include "train/job/config.h"

struct matrix_row {
	char model[32];
	int64_t tokens;
	char label[256]; /* the keys set beyond the preset */
	struct vfm_config config;
	int64_t gpus;  /* of a prediction */
	int64_t packs; /* a step */
	int64_t text;  /* rows of a sample; 0: --text-len */
	int ranks;     /* where it runs */
	/* of a file of published figures; 0: none */
	double tflops_gpu, tok_s_gpu;
	char machine[64];       /* "": that of the file */
	bool is_published, oom; /* oom: the published run ran out of memory */
	char *software;         /* why it is not compared; NULL: it is */
	bool elsewhere;         /* published for another machine than the predicted one: it is not compared */
};

struct matrix_rows {
	struct matrix_row *v;
	size_t n, cap;
	char *machine;   /* that the figures were measured on; NULL: none is named */
	char *source;    /* of the published figures */
	bool is_product; /* of lists: combinations whose layout does not fit are left out */
};

/* Lists (base/list.h); NULL: not given.  Defaults: dit-s,dit-b; 1024,4096; fp32,bf16; none, of a search auto; 1; 1. */
struct matrix_lists {
	const char *models, *contexts, *dtypes, *recomputes, *packs, *gpus;
	struct vfm_strlist sets; /* KEY=LIST; the keys of dtypes and recomputes replace their defaults */
	bool search;             /* the rows are searched for their best layouts */
	bool text;               /* --text-len is given */
};

enum { MATRIX_ROWS_MAX = 4096, MATRIX_COUNT_MAX = 1 << 20 /* packs, GPUs */ };

/* A row for each combination, the last list changing first: models, contexts, dtypes, recomputes, sets in their order,
 * packs, gpus.  VFM_EUSAGE: more than MATRIX_ROWS_MAX, an invalid value, or two lists for one key. */
int matrix_rows_of_lists(struct matrix_rows *r, const struct matrix_lists *l, struct vfm_err *err);
/* JSON Lines: {"model": "dit-s", "context": 8192, "gpus": 8, "packs": 8, "set": {"train.dtype": "bf16"}}.  l: packs and
 * gpus of a row without these keys, one value each.  VFM_EUSAGE: another list is given, or one that no row needs. */
int matrix_rows_of_file(struct matrix_rows *r, const char *path, const struct matrix_lists *l, struct vfm_err *err);
/* share/published: a JSON object with the keys v, source, machine and rows.  A row is one of matrix_rows_of_file with
 * the further keys tflops_gpu, tok_s_gpu, oom, software, config, machine, text and assumed.  `name` is a path or the
 * name of an installed file. */
int matrix_rows_of_published(
	struct matrix_rows *r, const char *name, const struct matrix_lists *l, struct vfm_err *err);
void matrix_rows_release(struct matrix_rows *r);

#endif
