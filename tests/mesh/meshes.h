/* meshes.h - layout-freedom: a training step on a mesh of ranks against the same step on one.
 *
 * A row of the list (meshes.txt) names a model, a number of ranks and keys of the configuration.  Its ranks are forks;
 * each compares the gradients that it owns with those of the single process, which lie in memory that all share, and
 * leaves the differences there.
 */
#ifndef MESHES_H
#define MESHES_H

#include "mesh/mesh.h"
#include "train/trainer.h"

enum { STEPS = 5, MAX_RANKS = 16, MAX_TENSORS = 1024, MAX_KEYS = 24, MAX_FLOATS = 24 << 20 };

struct row {
	const char *model;
	int ranks, nodes;          /* nodes: key "nodes=2", made up, so that what goes between them goes over sockets */
	const char *key[MAX_KEYS]; /* "tp=2", "fsdp", "recompute=full", … */
	int n_keys;
	const char *text; /* the keys in one line */
	int line;
};

/* What one process computed. */
struct ref_tensor {
	char name[96];
	int64_t n, off; /* global elements; place in the data */
	double max, norm;
};
struct ref {
	bool ok;
	char why[VFM_ERR_MAX];
	double loss[STEPS], max; /* max: the largest gradient of all */
	int n;
	struct ref_tensor t[MAX_TENSORS];
	float data[]; /* [MAX_FLOATS] */
};

/* What a rank found. */
struct found {
	bool done;
	char why[VFM_ERR_MAX];
	double loss[STEPS];
	struct {
		double max_diff, sq_diff;
		int64_t covered;
	} t[MAX_TENSORS];
};

/* A fault is put into every rank of a row. */
struct fault {
	const char *name;
	const char *op;    /* all_reduce, reduce_scatter, all_gather, all_to_all, exchange; or "slice" (no group) */
	const char *group; /* the name that the mesh gave it */
	int64_t call;      /* which of its calls, from 0; -1: all */
};
void fault_arm(const struct fault *f, struct vfm_mesh *m);
/* Initial weights of one slice come from one element further on. */
int fault_slice(const struct fault *f, struct vfm_params *ps, struct vfm_err *err);
int64_t fault_hits(void); /* faulty calls of this process */

/* What carries the groups of the mesh: "shm" (tests/unit/shm_transport.h, on a CPU), or as VFM_COMM; NULL: as without
 * it. */
extern const char *mesh_comm;
/* Before the ranks of a row are forked. */
void comm_prepare(void);

/* One process, on the CPU: fills ref.  A rank of a row, on this device: compares with ref. */
int run_single(const struct vfm_config *c, struct ref *ref, struct vfm_err *err);
int run_rank(const struct vfm_config *c, const char *device, struct vfm_launch *l, int nodes, const struct fault *fault,
	const struct ref *ref, struct found *out, struct vfm_err *err);

#endif
