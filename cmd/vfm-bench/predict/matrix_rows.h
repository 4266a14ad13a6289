/* matrix_rows.h - the rows of vfm-bench matrix: from lists of options, JSON Lines, or a file of published figures. */
#ifndef CMD_MATRIX_ROWS_H
#define CMD_MATRIX_ROWS_H

#include "base/err.h"
#include "io/opt.h"
#include "train/job/config.h"

struct matrix_row {
	char model[32];
	int64_t tokens;
	char label[256]; /* the keys set in addition to the preset */
	struct vfm_config config;
	int64_t gpus;  /* of a prediction */
	int64_t packs; /* packs per step */
	int64_t text;  /* text rows per sample; 0: --text-len */
	int ranks;     /* number of ranks of the run */
	/* of a file of published figures; 0: none */
	double tflops_gpu, tok_s_gpu;
	char machine[64];       /* "": the machine of the file */
	bool is_published, oom; /* oom: the published run ran out of memory */
	char *software;         /* why it is not compared; NULL: it is */
	bool elsewhere;         /* not compared: published for another machine than the predicted one */
};

struct matrix_rows {
	struct matrix_row *v;
	size_t n, cap;
	char *machine;   /* on which the figures were measured; NULL: not named */
	char *source;    /* of the published figures */
	bool is_product; /* from lists: combinations with impossible layouts are omitted */
};

/* Lists (base/list.h); NULL: not given.  Defaults: dit-s,dit-b; 1024,4096; fp32,bf16; none, of a search auto; 1; 1. */
struct matrix_lists {
	const char *models, *contexts, *dtypes, *recomputes, *packs, *gpus;
	struct vfm_strlist sets; /* KEY=LIST; the keys of dtypes and recomputes replace their defaults */
	bool search;             /* search for the best layouts of the rows */
	bool text;               /* --text-len is given */
};

enum { MATRIX_ROWS_MAX = 4096, MATRIX_COUNT_MAX = 1 << 20 /* packs, GPUs */ };

/* Adds a row for each combination: models, contexts, dtypes, recomputes, sets in their order, packs, gpus.  The last
 * list varies fastest.  VFM_EUSAGE: more than MATRIX_ROWS_MAX rows, an invalid value, or two lists for one key. */
int matrix_rows_of_lists(struct matrix_rows *r, const struct matrix_lists *l, struct vfm_err *err);
/* Adds the rows of JSON Lines, such as {"model": "dit-s", "context": 8192, "gpus": 8, "packs": 8, "set":
 * {"train.dtype": "bf16"}}.  l: one value each for packs and gpus, the defaults of rows without these keys.
 * VFM_EUSAGE: another list is given, or one that no row uses. */
int matrix_rows_of_file(struct matrix_rows *r, const char *path, const struct matrix_lists *l, struct vfm_err *err);
/* Adds the rows of a file of share/published: a JSON object with the keys v, source, machine and rows.  A row has the
 * keys of matrix_rows_of_file and tflops_gpu, tok_s_gpu, oom, software, config, machine, text and assumed.  `name` is a
 * path or the name of an installed file. */
int matrix_rows_of_published(
	struct matrix_rows *r, const char *name, const struct matrix_lists *l, struct vfm_err *err);
void matrix_rows_release(struct matrix_rows *r);

#endif
