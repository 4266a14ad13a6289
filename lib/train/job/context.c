/* context.c - starts the ranks of a command, and opens device and mesh of each. */
#include "train/job/context.h"

#include "base/par.h"
#include "comm/device/comm_dev.h"
#include "comm/device/comm_sim.h"
#include "device/sim/uneven.h"

int vfm_context_check(const struct vfm_context_opts *o, struct vfm_err *err)
{
	if (o->ranks != VFM_UNSET && (o->ranks < 1 || o->ranks > VFM_RANKS_MAX))
		return vfm_fail(err, VFM_EUSAGE, "-n: expected 1 to %d, got %lld", VFM_RANKS_MAX, (long long)o->ranks);
	if (o->threads != VFM_UNSET && (o->threads < 1 || o->threads > 4096))
		return vfm_fail(err, VFM_EUSAGE, "--threads: expected 1 to 4096, got %lld", (long long)o->threads);
	return 0;
}

int vfm_context_run(const struct vfm_context_opts *o, vfm_rank_fn work, void *ctx, struct vfm_err *err)
{
	struct vfm_context x = {.opts = o};
	int rc = vfm_job_start(&x.job, o->ranks == VFM_UNSET ? 0 : (int)o->ranks, o->recorder_dir, err);

	if (rc == 1)
		return -x.job.launch.status;
	TRY(rc);
	if (o->threads != VFM_UNSET)
		vfm_par_set_threads((int)o->threads);
	rc = work(&x, ctx, err);
	vfm_job_failed(&x.job, rc, err);
	vfm_context_close(&x);
	return vfm_job_end(&x.job, rc, err);
}

/* Returns what the device of a simulated rank is: a slow rank has a slow one. */
static struct vfm_device_simulated describe_simulated(const struct vfm_comm_sim_rank *r)
{
	const struct vfm_comm_sim_job *job = r->job;
	struct vfm_device_simulated d = {.machine = job->machine, .world = job->world, .expert_skew = job->expert_skew};

	if (job->slow_factor > 0 && job->rank_of[r->rep] == job->slow_rank)
		vfm_sim_slow_kernels(&d.machine, job->slow_factor);
	return d;
}

static int open_rank(struct vfm_context *x, bool deterministic, struct vfm_err *err)
{
	struct vfm_device_simulated simulated;
	struct vfm_device_opts o = {.local_rank = x->job.launch.local_rank,
		.local_size = x->job.launch.local_size,
		.size = x->job.world->size,
		.deterministic = deterministic,
		.machine = x->opts->machine};

	if (x->sim) {
		simulated = describe_simulated(x->sim);
		o.simulated = &simulated;
	}
	if (vfm_device_open_rank(&x->device, x->opts->device, &o, err) < 0)
		return vfm_err_context(err, "--device");
	if (x->sim) {
		x->sim->dev = x->device.dev;
		x->sim->deterministic = deterministic;
	}
	return 0;
}

/* Collective.  All ranks learn of a failure. */
static int connect_devices(struct vfm_context *x, struct vfm_err *err)
{
	const struct vfm_plugin *plugin = x->device.plugin;
	struct vfm_comm_dev_opts o = {
		.compute = x->device.stream, .transport = plugin ? plugin->transport : NULL, .host_memory = !plugin};
	struct vfm_comm *host = x->job.world;
	int rc;

	if (x->sim && host->size > 1)
		return vfm_job_failed(&x->job, vfm_comm_sim_device(host, o.compute, &x->world, err), err);
	rc = vfm_comm_dev_new(host, &o, &x->world, err);
	/* All ranks detect invalid settings alike. */
	return rc == VFM_EUSAGE ? vfm_job_agree(&x->job, rc, err) : vfm_job_failed(&x->job, rc, err);
}

int vfm_context_device(struct vfm_context *x, bool deterministic, struct vfm_err *err)
{
	TRY(vfm_job_agree(&x->job, open_rank(x, deterministic, err), err));
	return connect_devices(x, err);
}

int vfm_context_open(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_parallel p = c->parallel;

	TRY(vfm_job_agree(&x->job, vfm_parallel_check(&p, &c->model, x->job.world->size, err), err));
	TRY(vfm_context_device(x, c->train.deterministic, err));
	return vfm_job_failed(&x->job, vfm_mesh_init(&x->mesh, &p, x->world, x->device.dev, err), err);
}

void vfm_context_close(struct vfm_context *x)
{
	vfm_mesh_release(&x->mesh);
	if (x->world)
		vfm_comm_dev_free(x->world, x->job.world);
	x->world = NULL;
	vfm_device_close(&x->device);
	if (x->sim)
		x->sim->dev = NULL;
}
