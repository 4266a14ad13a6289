#include "train/job/context.h"

#include "base/par.h"

const char vfm_device_default[] = "cpu";

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

static int open_rank(struct vfm_context *x, bool deterministic, struct vfm_err *err)
{
	struct vfm_device_opts o = {.sim = x->sim,
		.local_rank = x->job.launch.local_rank,
		.local_size = x->job.launch.local_size,
		.size = x->job.world->size,
		.deterministic = deterministic,
		.machine = x->opts->machine};

	if (vfm_device_open_rank(&x->device, x->opts->device, &o, err) < 0)
		return vfm_err_context(err, "--device");
	return 0;
}

int vfm_context_device(struct vfm_context *x, bool deterministic, struct vfm_err *err)
{
	TRY(vfm_job_agree(&x->job, open_rank(x, deterministic, err), err));
	return vfm_device_join(&x->device, &x->job, err);
}

int vfm_context_open(struct vfm_context *x, const struct vfm_config *c, struct vfm_err *err)
{
	struct vfm_parallel p = c->parallel;

	TRY(vfm_job_agree(&x->job, vfm_parallel_check(&p, &c->model, x->job.world->size, err), err));
	TRY(vfm_context_device(x, c->train.deterministic, err));
	return vfm_job_failed(&x->job, vfm_mesh_init(&x->mesh, &p, x->device.world, x->device.dev, err), err);
}

void vfm_context_close(struct vfm_context *x)
{
	vfm_mesh_release(&x->mesh);
	vfm_device_close(&x->device);
}
