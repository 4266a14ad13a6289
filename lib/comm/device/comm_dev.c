/* Selects the backend of device communicators. */
#include "comm/device/comm_dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/device/comm_staging.h"
#include "comm/device/transport.h"

/* Sets *a and *b to the first two ranks with the same device, or to -1.  Collective. */
static int find_shared_device(
	struct vfm_comm *host, const struct vfm_comm_dev_opts *o, int *a, int *b, struct vfm_err *err)
{
	char mine[VFM_TRANSPORT_DEVICE] = {0}, *all = vfm_calloc((size_t)host->size, VFM_TRANSPORT_DEVICE);
	int rc, gathered;

	*a = *b = -1;
	/* A rank that cannot read its id still takes part in the call, and then fails. */
	rc = o->transport->device_id(o->compute->dev, mine, err);
	gathered = vfm_all_gather(host, NULL, vfm_t1(mine, VFM_U8, VFM_TRANSPORT_DEVICE),
		vfm_t1(all, VFM_U8, (int64_t)host->size * VFM_TRANSPORT_DEVICE), NULL, rc < 0 ? NULL : err);
	rc = rc < 0 ? rc : gathered;
	for (int i = 0; rc >= 0 && i < host->size; i++)
		if (!all[i * VFM_TRANSPORT_DEVICE])
			rc = vfm_fail(err, VFM_EENV, "rank %d cannot identify its device", i);
	for (int i = 0; rc >= 0 && *a < 0 && i < host->size; i++)
		for (int k = i + 1; *a < 0 && k < host->size; k++)
			if (!memcmp(all + i * VFM_TRANSPORT_DEVICE, all + k * VFM_TRANSPORT_DEVICE,
				    VFM_TRANSPORT_DEVICE)) {
				*a = i;
				*b = k;
			}
	free(all);
	return rc;
}

/* Uses the transport unless ranks share a device.  NCCL would report that too late, and from each rank. */
static int new_over_transport(struct vfm_comm *host, const struct vfm_comm_dev_opts *o, bool asked,
	struct vfm_comm **out, struct vfm_err *err)
{
	const char *share = getenv("VFM_CUDA_SHARE");
	bool may_share = share && !strcmp(share, "1");
	int a, b;

	TRY(find_shared_device(host, o, &a, &b, err));
	if (a >= 0 && !may_share && asked)
		return vfm_fail(err, VFM_EUSAGE,
			"VFM_COMM=%s: ranks %d and %d have the same device; start fewer ranks, or set VFM_COMM=staging "
			"or VFM_CUDA_SHARE=1",
			o->transport->name, a, b);
	if (a >= 0 && !may_share) {
		vfm_info("ranks share a device: collectives are staged through the host");
		return vfm_comm_staging_new(host, o->compute, out, err);
	}
	if (a >= 0)
		TRY(o->transport->share(host->rank, err));
	return vfm_comm_transport_new(host, o->transport, o->compute, out, err);
}

int vfm_comm_dev_new(
	struct vfm_comm *host, const struct vfm_comm_dev_opts *o, struct vfm_comm **out, struct vfm_err *err)
{
	const char *want = getenv("VFM_COMM");
	bool asked = want && *want;

	*out = host;
	if (asked && strcmp(want, "host") != 0 && strcmp(want, "staging") != 0 &&
		!(o->transport && !strcmp(want, o->transport->name)))
		return vfm_fail(err, VFM_EUSAGE, "VFM_COMM: expected %s%s%sstaging, got '%s'",
			o->host_memory ? "host, " : "", o->transport ? o->transport->name : "",
			o->transport ? ", " : "", want);
	if (asked && !strcmp(want, "host") && !o->host_memory)
		return vfm_fail(err, VFM_EUSAGE,
			"VFM_COMM=host: the host cannot access this device's memory; set VFM_COMM=staging");
	if (asked ? !strcmp(want, "host") : o->host_memory)
		return 0;
	if (asked ? !strcmp(want, "staging") : !o->transport)
		return vfm_comm_staging_new(host, o->compute, out, err);
	return host->size == 1 && !asked ? 0 : new_over_transport(host, o, asked, out, err);
}

void vfm_comm_dev_free(struct vfm_comm *c, struct vfm_comm *host)
{
	if (c != host)
		vfm_comm_free(c);
}
