/* meshes.h - independence of layouts: a training step on a mesh of ranks, compared with the same step on one process.
 *
 * A row of the list (meshes.txt) names a model, a number of ranks and keys of the configuration.  The ranks of a row
 * are forked processes.  Each compares the gradients that it owns with those of the single process and stores the
 * differences.  Both are in shared memory.
 */
#ifndef MESHES_H
#define MESHES_H

#include "comm/launch/launch.h"
#include "net/mesh/mesh.h"
#include "train/step/trainer.h"

enum { STEPS = 5, MAX_RANKS = 16, MAX_TENSORS = 1024, MAX_KEYS = 24, MAX_FLOATS = 24 << 20 };

struct row {
	const char *model;
	int ranks, nodes;          /* nodes: key "nodes=2"; synthetic nodes, with sockets between them */
	const char *key[MAX_KEYS]; /* "tp=2", "fsdp", "recompute=full", … */
	int n_keys;
	const char *text; /* the keys in one line */
	int line;
};

/* The results of the single process. */
struct ref_tensor {
	char name[96];
	int64_t n, off; /* global elements; offset in data */
	double max, norm;
};
struct ref {
	bool ok;
	char why[VFM_ERR_MAX];
	double loss[STEPS], max; /* max: the largest element of all gradients */
	int n;
	struct ref_tensor t[MAX_TENSORS];
	float data[]; /* [MAX_FLOATS] */
};

/* The results of a rank. */
struct found {
	bool done;
	char why[VFM_ERR_MAX];
	double loss[STEPS];
	struct {
		double max_diff, sq_diff;
		int64_t covered;
	} t[MAX_TENSORS];
};

/* A fault, injected into every rank of a row. */
struct fault {
	const char *name;
	const char *op;    /* all_reduce, reduce_scatter, all_gather, all_to_all, exchange; or "slice" (no group) */
	const char *group; /* its name in the mesh */
	int64_t call;      /* index of the faulty call, from 0; -1: all calls */
};
void fault_arm(const struct fault *f, struct vfm_mesh *m);
/* Rotates the initial weights of one slice by one element.  No-op unless the op of f is "slice". */
int fault_slice(const struct fault *f, struct vfm_params *ps, struct vfm_err *err);
int64_t fault_hits(void); /* returns the number of faulty calls in this process */

/* The transport of the groups of the mesh: "shm" (tests/unit/shm_transport.h, on a CPU), or a value of VFM_COMM; NULL:
 * the default. */
extern const char *mesh_comm;
/* Prepares the transport.  To be called before the ranks of a row are forked. */
void comm_prepare(void);

/* run_single runs the steps in one process on the CPU and fills ref.  run_rank runs them as a rank on `device` and
 * fills out with the differences from ref. */
int run_single(const struct vfm_config *c, struct ref *ref, struct vfm_err *err);
int run_rank(const struct vfm_config *c, const char *device, struct vfm_launch *l, int nodes, const struct fault *fault,
	const struct ref *ref, struct found *out, struct vfm_err *err);

#endif
