/* open.c - maps a name to a device: built in, a plugin, or simulated. */
#include "device/open/open.h"

#include <string.h>

#include "base/log.h"
#include "base/par.h"
#include "device/cpu/cpu.h"
#include "device/sim/network.h"
#include "device/sim/sim.h"

const char vfm_device_default[] = "cpu";

/* Known plugins; "cpu" is built in. */
static const char *const plugins[] = {"cuda"};

static int open_plugin(struct vfm_device *d, const char *name, const struct vfm_plugin_opts *o, struct vfm_err *err)
{
	struct vfm_err why = {0};

	d->plugin = vfm_plugin_load(name, &why);
	d->dev = d->plugin ? d->plugin->open(o, &why) : NULL;
	if (d->dev)
		return 0;
	*d = (struct vfm_device){0};
	if (err)
		*err = why;
	return why.code < 0 ? why.code : VFM_EENV;
}

static int open_simulated(struct vfm_device *d, const struct vfm_device_opts *o, struct vfm_err *err)
{
	struct vfm_machine m;

	if (o->simulated) {
		d->dev = vfm_sim_open(&o->simulated->machine, o->simulated->world, err);
		if (d->dev)
			vfm_sim_set_routing(d->dev, o->simulated->expert_skew);
		return d->dev ? 0 : VFM_EENV;
	}
	if (!o->machine)
		return vfm_fail(err, VFM_EUSAGE,
			"the device 'sim' computes no data: only vfm-bench step, sample and launches predict with it");
	if (o->size > 1)
		return vfm_fail(err, VFM_EUSAGE, "the device 'sim' simulates one rank, this job has more");
	TRY(vfm_machine_load(&m, o->machine, err));
	TRY(vfm_sim_check_ranks(&m, 1, err));
	d->dev = vfm_sim_open(&m, NULL, err);
	return d->dev ? 0 : VFM_EENV;
}

int vfm_device_open_rank(
	struct vfm_device *d, const char *name, const struct vfm_device_opts *opts, struct vfm_err *err)
{
	struct vfm_plugin_opts o = {.local_rank = opts->local_rank,
		.local_size = opts->local_size,
		.deterministic = opts->deterministic,
		.thread_start = vfm_par_serial,
		.warn = opts->local_rank == 0 ? vfm_warn : NULL}; /* warnings hold for all ranks of a node */
	bool known = false;

	*d = (struct vfm_device){0};
	for (size_t i = 0; i < sizeof(plugins) / sizeof(*plugins); i++)
		known |= strcmp(name, plugins[i]) == 0;
	if (known) {
		TRY(open_plugin(d, name, &o, err));
	} else if (strcmp(name, "cpu") == 0) {
		d->dev = vfm_cpu_open(err);
		if (!d->dev)
			return VFM_EENV;
	} else if (strcmp(name, "sim") == 0) {
		TRY(open_simulated(d, opts, err));
	} else {
		return vfm_fail(err, VFM_EUSAGE, "unknown device '%s' (expected cpu, cuda or sim)", name);
	}
	d->stream = d->dev->t->stream_new(d->dev, false, err);
	if (d->stream)
		return 0;
	vfm_device_close(d);
	return VFM_EENV;
}

int vfm_device_open(struct vfm_device *d, const char *name, struct vfm_err *err)
{
	return vfm_device_open_rank(d, name, &(struct vfm_device_opts){.local_size = 1, .size = 1}, err);
}

void vfm_device_close(struct vfm_device *d)
{
	if (d->stream)
		d->dev->t->stream_free(d->stream);
	if (d->dev)
		d->dev->t->dev_free(d->dev);
	*d = (struct vfm_device){0};
}

const char *vfm_device_features(void)
{
	return vfm_plugin_exists("cuda") ? " cuda" : "";
}
