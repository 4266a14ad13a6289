/* context.h - the execution context of a rank: job, device and mesh.
 *
 *	static struct vfm_context_opts o = VFM_CONTEXT_OPTS_INIT; // set by the rows VFM_CONTEXT_OPTS(&o) of the options
 *
 *	static int work(struct vfm_context *x, void *ctx, struct vfm_err *err) // runs on every rank
 *	{
 *		TRY(vfm_context_open(x, config, err));
 *		...                                 // x->device.stream, x->mesh
 *	}
 *
 *	TRY(vfm_job_say_once(vfm_context_check(&o, err), err));
 *	return vfm_context_run(&o, work, ctx, err);
 *
 * The context is valid while `work` runs and belongs to one thread.
 */
#ifndef VFM_TRAIN_JOB_CONTEXT_H
#define VFM_TRAIN_JOB_CONTEXT_H

#include "device/open/open.h"
#include "io/opt.h"
#include "net/mesh/mesh.h"
#include "train/job/config.h"
#include "train/job/job.h"

enum { VFM_UNSET = INT32_MIN };   /* a numeric option that was not given */
enum { VFM_RANKS_MAX = 1 << 20 }; /* of a job */

struct vfm_context_opts {
	int64_t ranks;            /* -n: ranks to fork on this host; VFM_UNSET: one process, or the tasks of srun */
	int64_t threads;          /* --threads: compute threads per rank; VFM_UNSET: its share of the CPUs */
	const char *device;       /* --device: "cpu", "cuda"; "sim" with a machine */
	const char *machine;      /* for "sim"; NULL: "sim" is refused (vfm_device_opts) */
	const char *recorder_dir; /* directory of the flight recorder (comm/host/comm_host.h); NULL: default */
};

/* .device has another address if --device is given. */
#define VFM_CONTEXT_OPTS_INIT                                                                                          \
	{                                                                                                              \
		.ranks = VFM_UNSET, .threads = VFM_UNSET, .device = vfm_device_default                                 \
	}

/* Rows of a struct vfm_opt table; `o` is a struct vfm_context_opts *. */
#define VFM_CONTEXT_ROWS(o, devices)                                                                                   \
	{VFM_OPT_INT, 'n', "ranks", "N", "start N ranks on this host (under Slurm, srun starts them)", &(o)->ranks},   \
		{VFM_OPT_INT, 0, "threads", "N", "compute threads of a rank", &(o)->threads},                          \
	{                                                                                                              \
		VFM_OPT_STR, 0, "device", devices, "where to compute", &(o)->device                                    \
	}
#define VFM_CONTEXT_OPTS(o)     VFM_CONTEXT_ROWS(o, "cpu|cuda")
#define VFM_CONTEXT_OPTS_SIM(o) VFM_CONTEXT_ROWS(o, "cpu|cuda|sim") /* sets o->machine */

struct vfm_context {
	const struct vfm_context_opts *opts;
	struct vfm_job job;
	struct vfm_comm_sim_rank *sim; /* of a simulated rank (simulate.h); else NULL */
	struct vfm_device device;      /* empty until vfm_context_device, like world */
	struct vfm_comm *world;        /* of all ranks, for device memory (comm/device/comm_dev.h) */
	struct vfm_mesh mesh;          /* empty until vfm_context_open */
};

/* Local.  Returns VFM_EUSAGE if the number of ranks or threads is out of range. */
int vfm_context_check(const struct vfm_context_opts *o, struct vfm_err *err);

typedef int (*vfm_rank_fn)(struct vfm_context *x, void *ctx, struct vfm_err *err);

/* Starts the ranks, calls `work` on each, closes the context and ends the ranks.  Must precede the first thread and
 * the first output of the process.  Returns the result of `work`; the message is empty if another rank reports the
 * failure.  The parent of forked ranks does not call `work`: it returns the negative of the ranks' worst exit status,
 * with an empty message. */
int vfm_context_run(const struct vfm_context_opts *o, vfm_rank_fn work, void *ctx, struct vfm_err *err);

/* Collective: opens x->device on every rank and makes x->world.  All ranks return the same failure. */
int vfm_context_device(struct vfm_context *x, bool deterministic, struct vfm_err *err);
/* Collective: checks c->parallel against the number of ranks, opens the device with the options of c->train, and
 * creates x->mesh.  x->mesh.p holds the resolved degrees. */
int vfm_context_open(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err);
/* Releases mesh and device; the caller may open them again.  After a local failure, call vfm_job_failed first. */
void vfm_context_close(struct vfm_context *x);

#endif
